"""`imsvd reproduce run`: experiments at the CPU budget, on this machine.

STORE/runs/          training runs, shared by all experiments
STORE/runs/<run>/reproduction/<protocol>.json   transfer results and figures of a run
STORE/data/          drawn scenes that replace VOC 2007 and COCO
STORE/experiments/   results, rewritten after every run
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from imsvd.datasets.drawn.scene_files import write_scenes
from imsvd.errors import InputError
from imsvd.evaluation.protocols import evaluate
from imsvd.explanations import explain
from imsvd.files import write_atomically
from imsvd.grid.jobs import (
    OUTCOME,
    Job,
    check_data,
    run_folder,
    unique,
)
from imsvd.grid.runner import GridState, run_grid
from imsvd.progress import counted
from imsvd.reproduction.experiment import Cell, Experiment, Protocol, Setup, check_setup
from imsvd.reproduction.plots import draw_picture
from imsvd.reproduction.report import current_facts, show_results, write_result
from imsvd.reproduction.results import Content, Source, describe

PLOT_SECONDS = 60
"""Minimum time between two plots of an experiment while its runs finish."""
SCENES = 500
"""Drawn training scenes; half as many are drawn for testing."""
STAND_INS = {"voc07": "scenes", "coco": "scenes", "places205": "own classes"}
"""Data of the transfer protocols, unless others are given."""


def reproduce(
    experiments: Sequence[Experiment],
    setup: Setup,
    store: Path,
    *,
    parallel: int = 1,
    console: Console | None = None,
) -> list[Content]:
    """Run whatever is missing of the experiments; return the content of each result.json.

    Args:
        experiments: see `find_experiments`.
        setup: at the CPU budget.
        store: folder for all runs and results; nothing it holds is repeated.
        parallel: simultaneous runs; they share the cores.
        console: where to show progress.

    Raises:
        Interrupted: after Ctrl-C; the same call resumes.
    """
    console = console or Console(quiet=True)
    check_setup(setup)
    check_data(setup.data)
    jobs = all_jobs(experiments, setup)
    names = ", ".join(experiment.name for experiment in experiments)
    console.print(
        f"Reproducing {names}: {counted(setup.epochs_per_100, 'epoch')} for every 100 of the paper, "
        f"{counted(len(setup.seeds), 'seed')}, {counted(len(jobs), 'run')}.",
        highlight=False,
        soft_wrap=True,
    )
    reporter = _Reporter(experiments, setup, store)
    state = run_grid(jobs, store, console, parallel=parallel, report=reporter.update)
    wanted = [one for experiment in experiments for one in measurements(experiment, setup)]
    failures = measure_all(wanted, store, console)
    contents = [reporter.write(experiment, state, draw=True) for experiment in experiments]
    show_results(contents, failures, console)
    return [{**content, "failures": [*content["failures"], *failures]} for content in contents]


def all_jobs(experiments: Sequence[Experiment], setup: Setup) -> list[Job]:
    """Return the runs of all experiments without duplicates, seed by seed, to fill tables evenly."""
    return unique(
        job
        for seed in setup.seeds
        for experiment in experiments
        for job in experiment.jobs(setup._replace(seeds=(seed,)))
        if seed == setup.seeds[0] or not experiment.part
    )


class _Reporter:
    """Writes the results of experiments as their runs finish."""

    def __init__(self, experiments: Sequence[Experiment], setup: Setup, store: Path) -> None:
        self.experiments, self.setup, self.store = experiments, setup, store
        self.jobs = {experiment.name: experiment.jobs(setup) for experiment in experiments}
        self.facts = current_facts()
        self.written: dict[str, int] = {}
        self.drawn: dict[str, float] = {}

    def update(self, state: GridState) -> None:
        """Rewrite the results that have changed."""
        ended = state.outcomes.keys() | state.failures.keys()
        for experiment in self.experiments:
            done = sum(job in ended for job in self.jobs[experiment.name])
            if self.written.get(experiment.name) != done:
                self.written[experiment.name] = done
                last = self.drawn.get(experiment.name)
                due = last is None or time.monotonic() - last > PLOT_SECONDS
                self.write(experiment, state, draw=due)

    def write(self, experiment: Experiment, state: GridState, *, draw: bool) -> Content:
        """Write the numbers of one experiment and, if `draw`, its picture."""
        facts = {**self.facts, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
        result = gather(experiment, self.setup, state, self.store)
        content = write_result(result, self.store, facts)
        if draw and draw_picture(experiment, self.setup, content, self.store):
            self.drawn[experiment.name] = time.monotonic()
        return content


def gather(experiment: Experiment, setup: Setup, state: GridState, store: Path) -> Content:
    """Return the result of an experiment from the outcomes and measurements so far."""
    measured = {
        (one.protocol, one.job): read_measurement(one, store) or {}
        for one in measurements(experiment, setup)
    }

    def value(cell: Cell, source: Source) -> float | None:
        assert source.job is not None  # published backbones are measured at full budget only
        if cell.measure.protocol != "grid":
            return measured[cell.measure.protocol, source.job].get(cell.measure.metric)
        outcome = state.outcomes.get(source.job)
        if outcome is None:
            return None
        costs = {
            "seconds_per_epoch": outcome.seconds_per_epoch,
            "peak_mebibytes": outcome.peak_mebibytes,
        }
        return {**outcome.metrics, **costs}.get(cell.measure.metric)

    content = describe(experiment, setup, store, value, state.outcomes.__contains__)
    jobs = experiment.jobs(setup)
    outcomes = [state.outcomes[job] for job in jobs if job in state.outcomes]
    content["parallel"] = max((outcome.parallel for outcome in outcomes), default=1)
    content["failures"] = [
        f"{job.title}: {state.failures[job]} ({job.name})" for job in jobs if job in state.failures
    ]
    return content


class Measurement(NamedTuple):
    """A transfer protocol or figure of one trained run."""

    protocol: Protocol
    job: Job
    inputs: Mapping[str, Any]
    """Everything else that affects the result; a stored result with other inputs is ignored."""

    def file(self, store: Path) -> Path:
        """Return the file of the result."""
        name = "-".join([self.protocol, *filter(None, [self.inputs.get("part")])])
        return run_folder(store, self.job) / "reproduction" / f"{name}.json"


def measurements(experiment: Experiment, setup: Setup) -> list[Measurement]:
    """Return the measurements that the runs of an experiment need beyond the grid's."""
    wanted = {}
    for cell in experiment.cells(setup):
        protocol = cell.measure.protocol
        for job in cell.jobs if protocol != "grid" else ():
            images = job.config.data.source
            inputs = {"data": images, "part": experiment.part}
            if protocol != "explain":
                data = setup.transfer_data(protocol) or STAND_INS[protocol]
                inputs = {"data": data, "images": images}
            wanted[protocol, job] = Measurement(protocol, job, inputs)
    return list(wanted.values())


def read_measurement(measurement: Measurement, store: Path) -> dict[str, float] | None:
    """Return the stored metrics, or None if there are none for these inputs."""
    try:
        found = json.loads(measurement.file(store).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("inputs") != dict(measurement.inputs):
        return None
    return dict(found["metrics"])


def measure_all(wanted: Sequence[Measurement], store: Path, console: Console) -> list[str]:
    """Measure what is missing of all finished runs; return a sentence for each failure."""
    failures = []
    missing = [
        one
        for one in wanted
        if (run_folder(store, one.job) / OUTCOME).exists() and read_measurement(one, store) is None
    ]
    for number, one in enumerate(missing, start=1):
        title = f"{one.protocol} of {one.job.title}"
        console.print(f"[dim][{number}/{len(missing)}][/dim] {escape(title)}", highlight=False)
        try:
            metrics = measure(one, store, console)
        except InputError as error:
            failures.append(f"{title}: {error}")
            continue
        content = {"inputs": dict(one.inputs), "metrics": metrics}
        write_atomically(one.file(store), (json.dumps(content, indent=2) + "\n").encode())
    return failures


def measure(measurement: Measurement, store: Path, console: Console) -> dict[str, float]:
    """Run the protocol, or draw the figure, and return its metrics."""
    protocol, inputs = measurement.protocol, measurement.inputs
    folder, data = run_folder(store, measurement.job), inputs["data"]
    if protocol == "explain":
        explain(folder, data, only=[inputs["part"]], console=console)
        return {"files": 1.0}
    stand_in = data == STAND_INS[protocol]
    if protocol == "places205":
        data = inputs["images"] if stand_in else data
        metrics = evaluate(protocol, folder, data, stand_in=stand_in, console=console)
        return {name.replace("_adapted", ""): value for name, value in metrics.items()}
    if stand_in:
        layout = "voc" if protocol == "voc07" else "coco"
        place = store / "data" / f"scenes-{layout}"
        data = write_scenes(place, images=SCENES, layout=layout, console=console)
    options = {"scale": "small"} if protocol == "coco" else {}
    return evaluate(protocol, folder, data, **options, console=console)
