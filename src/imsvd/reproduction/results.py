"""What the runs of an experiment have brought so far, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imsvd.encoder import results_path
from imsvd.grid.comparison import Spread, spread
from imsvd.grid.jobs import Job, Outcome, run_folder
from imsvd.grid.runner import GridState
from imsvd.reproduction.experiment import Cell, Experiment
from imsvd.reproduction.measuring import measurements, read_measurement
from imsvd.reproduction.order import Order, Point, compare_order
from imsvd.reproduction.variants import Setup


class Found(NamedTuple):
    """A cell, and its value for every seed; None where it is not there yet."""

    cell: Cell
    values: tuple[float | None, ...]

    @property
    def spread(self) -> Spread | None:
        """Mean and deviation over the seeds that are there."""
        return spread(self.values)


class Result(NamedTuple):
    """An experiment as far as it has come."""

    experiment: Experiment
    setup: Setup
    found: list[Found]
    finished: int
    """Training runs that are over and well."""
    total: int
    failures: list[str]
    parallel: int
    """Most runs that shared the machine."""

    @property
    def complete(self) -> bool:
        """Whether every value is there."""
        return all(value is not None for found in self.found for value in found.values)

    @property
    def order(self) -> Order:
        """How ours compares with the paper's order, as far as values are there."""
        points = [
            Point(
                found.cell.row,
                found.cell.column,
                found.cell.measure.title,
                found.cell.paper,
                found.spread,
                found.cell.measure.lower_is_better,
            )
            for found in self.found
            if found.cell.paper is not None and found.spread is not None
        ]
        return compare_order(points, self.experiment.compares)


def gather(experiment: Experiment, setup: Setup, standing: GridState, store: Path) -> Result:
    """Return the result of an experiment as the runs in `store` stand."""
    jobs = experiment.jobs(setup)
    measured = _measured(experiment, setup, store)
    outcomes = [standing.outcomes[job] for job in jobs if job in standing.outcomes]
    return Result(
        experiment,
        setup,
        [
            Found(cell, tuple(_value(cell, job, standing, measured) for job in cell.jobs))
            for cell in experiment.cells(setup)
        ],
        len(outcomes),
        len(jobs),
        [
            f"{job.title}: {standing.failures[job]} ({run_folder(store, job).name})"
            for job in jobs
            if job in standing.failures
        ],
        max((outcome.parallel for outcome in outcomes), default=1),
    )


def sources(cell: Cell, store: Path) -> list[tuple[int | None, Path]]:
    """Return seed and folder of everything that is measured for a cell; a published one has no seed."""
    if cell.pretrained:
        return [(None, results_path(cell.pretrained))]
    return [(job.config.seed, run_folder(store, job)) for job in cell.jobs]


def outcome_values(outcome: Outcome) -> dict[str, float | None]:
    """Return everything that a table can show of a run, by name."""
    memory = outcome.peak_memory
    return {
        **outcome.metrics,
        "seconds_per_epoch": outcome.seconds_per_epoch,
        "peak_mebibytes": None if memory is None else memory / 2**20,
    }


def _measured(
    experiment: Experiment, setup: Setup, store: Path
) -> dict[tuple[str, Job], dict[str, float]]:
    found: dict[tuple[str, Job], dict[str, float]] = {}
    for measurement in measurements(experiment, setup):
        metrics = read_measurement(measurement, store)
        if metrics is not None:
            found[measurement.protocol, measurement.job] = metrics
    return found


def _value(
    cell: Cell,
    job: Job,
    standing: GridState,
    measured: Mapping[tuple[str, Job], Mapping[str, Any]],
) -> float | None:
    if cell.measure.protocol == "grid":
        outcome = standing.outcomes.get(job)
        return None if outcome is None else outcome_values(outcome).get(cell.measure.metric)
    metrics = measured.get((cell.measure.protocol, job))
    if metrics is None:
        return None
    # A figure has no number of its own: that it was drawn is what counts.
    return 1.0 if cell.measure.protocol == "explain" else metrics.get(cell.measure.metric)
