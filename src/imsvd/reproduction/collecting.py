"""The results of a cluster: what runs and evaluations have left in a store so far, as tables.

`imsvd reproduce … --scale full --collect` trains and measures nothing. It reads what the commands of
`full_plan` write: metrics.jsonl of a run tells what training took, results.jsonl what was measured,
explanations/ what was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from imsvd.errors import InputError
from imsvd.evaluation.results import as_in_the_paper, is_of_untrained, read_results
from imsvd.grid.jobs import run_folder
from imsvd.reproduction.experiment import Cell, Experiment
from imsvd.reproduction.full_plan import tested_on
from imsvd.reproduction.markdown import Content
from imsvd.reproduction.report import current_facts, write_result
from imsvd.reproduction.results import Found, Result, sources
from imsvd.reproduction.showing import draw, drawn_figures, show
from imsvd.reproduction.variants import Setup
from imsvd.runs import RunFolder
from imsvd.training.costs import largest_peak, median_epoch_seconds


def collect(
    experiments: Sequence[Experiment], setup: Setup, store: Path, console: Console
) -> list[Content]:
    """Write and show the tables and plots of what there is; return what result.json of each holds.

    Raises:
        InputError: if there is nothing of any of their runs.
    """
    folders = [run_folder(store, job) for one in experiments for job in one.jobs(setup)]
    if not any(RunFolder(folder).exists() for folder in folders):
        raise InputError(
            f"{store} holds none of these runs; give --out, --data, --epochs and --set as they were "
            "trained with."
        )
    facts = current_facts()
    facts["cpu"] = f"that of the runs, which they do not record; collected on {facts['cpu']}"
    contents = []
    for experiment in experiments:
        content = write_result(gather_full(experiment, setup, store), store, facts)
        draw(experiment, experiment.jobs(setup), content, store)
        contents.append(content)
    show(contents, (), console)
    return contents


def gather_full(experiment: Experiment, setup: Setup, store: Path) -> Result:
    """Return the result of an experiment as its runs and evaluations in `store` stand."""
    cells, jobs = experiment.cells(setup), experiment.jobs(setup)
    return Result(
        experiment,
        setup,
        [
            Found(
                cell,
                tuple(
                    _value(cell, folder, experiment, setup) for _, folder in sources(cell, store)
                ),
            )
            for cell in cells
        ],
        sum(_is_over(run_folder(store, job)) for job in jobs),
        len(jobs),
        failures=[],
        parallel=1,
    )


def _value(cell: Cell, folder: Path, experiment: Experiment, setup: Setup) -> float | None:
    protocol, metric = cell.measure.protocol, cell.measure.metric
    if cell.runs and not _is_over(folder):
        return None
    if protocol == "explain":
        # A figure has no number of its own: that it was drawn is what counts.
        return 1.0 if drawn_figures(folder, experiment) else None
    if protocol == "training":
        return training_costs(RunFolder(folder).metrics()).get(metric)
    images = cell.runs[0].job.config.data.source if cell.runs else setup.data
    data = tested_on(protocol, images, setup)
    for record in reversed(read_results(folder)):
        if _is_wanted(record, protocol, data, cell) and metric in record["metrics"]:
            return float(record["metrics"][metric])
    return None


def training_costs(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return time and memory of a training as the paper gives them, from its metrics.jsonl."""
    costs = {}
    seconds = median_epoch_seconds(records)
    if seconds is not None:
        costs["hours_per_100_epochs"] = 100 * seconds / 3600
    peak = largest_peak(records)
    if peak is not None:
        costs["peak_gigabytes"] = peak / 1e9
    return costs


def _is_over(folder: Path) -> bool:
    """Whether a run has been trained to its end."""
    run = RunFolder(folder)
    records = run.metrics()
    return bool(records) and records[-1]["epoch"] >= run.config().training.epochs


def _is_wanted(record: Mapping[str, Any], protocol: str, data: str, cell: Cell) -> bool:
    """Whether it is of the finished encoder, on those images and with the paper's settings."""
    details = record.get("details", {})
    finished = cell.runs[0].job.config.training.epochs if cell.runs else None
    return (
        record["protocol"] == protocol
        and record["data"] == data
        and not is_of_untrained(record)
        and details.get("epoch") == finished
        and as_in_the_paper(protocol, details)
    )
