"""Results of an experiment: our values beside the paper's, and whether they are in the same order.

A comparison is a pair of cells that the paper compares: two rows of a column or two columns of a
row, of the same measure. Ties in the paper are not compared. A comparison is kept if our values
differ in the same direction, and within the spread if they differ by at most the deviation over
seeds, pooled over all cells of the measure. Kendall's tau is (kept - reversed) / comparisons,
regardless of the spread; our own ties count as neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from imsvd.encoder import results_path
from imsvd.evaluation.results import as_in_the_paper, is_of_untrained
from imsvd.grid.comparison import Spread, spread
from imsvd.grid.jobs import Job, run_folder
from imsvd.grid.runner import GridState
from imsvd.pretraining.metrics import largest_peak, median_epoch_seconds
from imsvd.reproduction.experiment import Budget, Cell, Direction, Experiment, Setup
from imsvd.runs import RunFolder, read_results

Content = Mapping[str, Any]
"""The content of result.json."""

FOLDERS: dict[Budget, str] = {"cpu": "experiments", "full": "experiments-full"}
FIGURES = {
    "joint": "joint_matrix.png",
    "embeddings": "embeddings.png",
    "galleries": "galleries/*.jpg",
    "grad_cam": "grad_cam.png",
}
"""Pictures of each part in a run's explanations/; of several, the first is shown."""

Verdict = Literal["kept", "kept within the spread", "reversed within the spread", "reversed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Point(NamedTuple):
    """A cell for which both the paper and we have a value."""

    row: str
    column: str
    measure: str
    paper: float
    ours: Spread
    lower_is_better: bool = False

    @property
    def name(self) -> str:
        """Row and column."""
        return f"{self.row} ({self.column})"


class Pair(NamedTuple):
    """Two compared cells; `larger` has the larger value in the paper."""

    larger: Point
    smaller: Point
    verdict: Verdict

    @property
    def sign(self) -> int:
        """1 if our values differ in the paper's direction, -1 if in the other, 0 for a tie."""
        difference = self.larger.ours.mean - self.smaller.ours.mean
        return (difference > 0) - (difference < 0)


class BestEntry(NamedTuple):
    """The best entry of a line: of a column's rows or a row's columns."""

    line: str
    paper: tuple[str, ...]
    """Several where the paper's best are tied."""
    ours: str
    verdict: Literal["kept", "kept within the spread", "another"]


class Order(NamedTuple):
    """All comparisons of a table."""

    pairs: list[Pair]
    best: list[BestEntry]

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of comparisons by verdict."""
        found = [pair.verdict for pair in self.pairs]
        return {verdict: found.count(verdict) for verdict in VERDICTS}

    @property
    def tau(self) -> float | None:
        """Kendall's tau; None without comparisons."""
        return sum(pair.sign for pair in self.pairs) / len(self.pairs) if self.pairs else None

    @property
    def holds(self) -> Literal["yes", "within the spread", "no", "unknown"]:
        """Whether the paper's order holds as a whole."""
        if not self.pairs:
            return "unknown"
        if self.counts["reversed"]:
            return "no"
        return "within the spread" if self.counts["reversed within the spread"] else "yes"

    def describe(self) -> dict[str, Any]:
        """Return the order as plain values."""
        reversed_pairs = [pair for pair in self.pairs if pair.verdict == "reversed"]
        return {
            "holds": self.holds,
            "comparisons": len(self.pairs),
            "counts": self.counts,
            "tau": self.tau,
            "best": [best._asdict() for best in self.best],
            "reversed": [[pair.larger.name, pair.smaller.name] for pair in reversed_pairs],
        }


def compare_order(points: Sequence[Point], directions: Sequence[Direction]) -> Order:
    """Compare our values with the paper's along `directions`."""
    deviations = pooled_deviations(points)
    pairs, best = [], []
    for direction in directions:
        for line, members in _lines(points, direction).items():
            deviation = deviations[members[0].measure]
            pairs += [
                _compare(one, other, deviation)
                for one, other in combinations(members, 2)
                if one.paper != other.paper
            ]
            if len(members) > 1:
                best.append(_best(line, members, direction, deviation))
    return Order(pairs, best)


def pooled_deviations(points: Iterable[Point]) -> dict[str, float | None]:
    """Return the deviation over seeds of each measure, pooled over its cells; None if unknown.

    The root mean square of the deviations, each weighted by its number of seeds - 1.
    """
    squares: dict[str, float] = {}
    degrees: dict[str, int] = {}
    for point in points:
        deviation, freedom = point.ours.deviation or 0.0, point.ours.number - 1
        squares[point.measure] = squares.get(point.measure, 0.0) + freedom * deviation**2
        degrees[point.measure] = degrees.get(point.measure, 0) + freedom
    return {
        measure: math.sqrt(total / degrees[measure]) if degrees[measure] else None
        for measure, total in squares.items()
    }


def _lines(points: Sequence[Point], direction: Direction) -> dict[str, list[Point]]:
    """Group cells by column or row; a column with several measures gives a line for each."""
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        name = point.column if direction == "rows" else point.row
        lines.setdefault((name, point.measure), []).append(point)
    named: dict[str, list[Point]] = {}
    for (name, measure), members in lines.items():
        named[name if name not in named else f"{name} ({measure})"] = members
    return named


def _compare(one: Point, other: Point, deviation: float | None) -> Pair:
    larger, smaller = (one, other) if one.paper > other.paper else (other, one)
    difference = larger.ours.mean - smaller.ours.mean
    within = deviation is not None and abs(difference) <= deviation
    if difference > 0:
        return Pair(larger, smaller, "kept within the spread" if within else "kept")
    tied = within or difference == 0
    return Pair(larger, smaller, "reversed within the spread" if tied else "reversed")


def _best(
    line: str, members: Sequence[Point], direction: Direction, deviation: float | None
) -> BestEntry:
    pick = min if members[0].lower_is_better else max
    top = pick(member.paper for member in members)
    favorites = [member for member in members if member.paper == top]
    ours = pick(members, key=lambda member: member.ours.mean)
    gap = min(abs(ours.ours.mean - favorite.ours.mean) for favorite in favorites)
    verdict: Literal["kept", "kept within the spread", "another"] = "another"
    if ours in favorites:
        verdict = "kept"
    elif deviation is not None and gap <= deviation:
        verdict = "kept within the spread"
    labels = [point.row if direction == "rows" else point.column for point in (*favorites, ours)]
    return BestEntry(line, tuple(labels[:-1]), labels[-1], verdict)


def experiment_folder(store: Path, name: str, budget: Budget = "cpu") -> Path:
    """Return the folder of an experiment's results."""
    return store / FOLDERS[budget] / name


def evaluation_data(protocol: str, images: str, setup: Setup, store: Path) -> str:
    """Return the data of a protocol for an encoder trained on `images`."""
    given = {"voc07": setup.voc, "coco": setup.coco, "places205": setup.places}
    if protocol not in given:
        return images
    if setup.budget == "full":
        return given[protocol] or {"voc07": "voc2007"}.get(protocol, protocol)
    scenes = str(store / "data" / f"scenes-{protocol}")
    return given[protocol] or (images if protocol == "places205" else scenes)


def drawn_figures(run: Path, part: str) -> list[Path]:
    """Return the pictures of a part of the explanations of a run."""
    return sorted((run / "explanations").glob(FIGURES[part]))


def measured(
    folder: Path, protocol: str, data: str, budget: Budget, epochs: int | None
) -> dict[str, float]:
    """Return the latest metrics in results.jsonl that apply; empty if there are none.

    They must be of the finished encoder and on `data`. At full budget, the settings must be the
    paper's; at the CPU budget they are adapted to small data, as the recorded names say.
    """
    metrics: dict[str, float] = {}
    for record in read_results(folder):
        details = record.get("details", {})
        name = record["protocol"]
        if (
            (name == protocol or (budget == "cpu" and name == f"{protocol}-adapted"))
            and Path(record["data"]).resolve() == Path(data).resolve()
            and not is_of_untrained(record)
            and details.get("epoch") == epochs
            and (budget == "cpu" or as_in_the_paper(protocol, details))
        ):
            metrics |= {key.replace("_adapted", ""): x for key, x in record["metrics"].items()}
    return metrics


def training_costs(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return hours and gigabytes, as in the paper, from the epochs of metrics.jsonl."""
    seconds, peak = median_epoch_seconds(records), largest_peak(records)
    costs = {} if seconds is None else {"hours_per_100_epochs": 100 * seconds / 3600}
    return costs if peak is None else costs | {"peak_gigabytes": peak / 1e9}


def is_trained(folder: Path) -> bool:
    """Return whether training of the run in `folder` is complete."""
    run = RunFolder(folder)
    records = run.metrics()
    return bool(records) and records[-1]["epoch"] >= run.config().training.epochs


def gather(
    experiment: Experiment, setup: Setup, store: Path, state: GridState | None = None
) -> dict[str, Any]:
    """Return the content of result.json, without environment, from what `store` holds.

    Args:
        experiment: the experiment.
        setup: budget and choices of its runs.
        store: folder of the runs.
        state: outcomes and failures of the grid, at the CPU budget.
    """

    def is_finished(job: Job) -> bool:
        return is_trained(run_folder(store, job)) if state is None else job in state.outcomes

    def value(cell: Cell, folder: Path, job: Job | None) -> float | None:
        protocol, metric = cell.measure.protocol, cell.measure.metric
        if job and not is_finished(job):
            return None
        if protocol == "grid" and job and state:
            outcome = state.outcomes[job]
            costs = {
                "seconds_per_epoch": outcome.seconds_per_epoch,
                "peak_mebibytes": outcome.peak_mebibytes,
            }
            return costs[metric] if metric in costs else outcome.metrics.get(metric)
        if protocol == "explain":
            return 1.0 if drawn_figures(folder, experiment.part) else None
        if protocol == "training":
            return training_costs(RunFolder(folder).metrics()).get(metric)
        images = job.config.data.source if job else setup.data
        data = evaluation_data(protocol, images, setup, store)
        epochs = job.epochs if job else None
        return measured(folder, protocol, data, setup.budget, epochs).get(metric)

    cells, points = [], []
    for cell in experiment.cells(setup):
        sources: list[tuple[Path, Job | None]] = [(run_folder(store, j), j) for j in cell.jobs]
        if cell.published:
            sources = [(results_path(cell.published), None)]
        found = [(folder, job, value(cell, folder, job)) for folder, job in sources]
        ours = spread([number for *_, number in found])
        cells.append(_describe_cell(cell, found, ours, store))
        if cell.paper is not None and ours is not None:
            measure = cell.measure
            place = (cell.row, cell.column, measure.title, cell.paper)
            points.append(Point(*place, ours, measure.lower_is_better))
    jobs = experiment.jobs(setup)
    outcomes = [state.outcomes[job] for job in jobs if job in state.outcomes] if state else []
    failures = state.failures if state else {}
    return {
        "experiment": experiment.name,
        "budget": setup.budget,
        "setup": setup._asdict() | {"epochs": setup.epochs_per_100},
        "runs": {"finished": sum(map(is_finished, jobs)), "total": len(jobs)},
        "complete": all(run["value"] is not None for cell in cells for run in cell["runs"]),
        "parallel": max((outcome.parallel for outcome in outcomes), default=1),
        "cells": cells,
        "order": compare_order(points, experiment.compares).describe(),
        "failures": [f"{j.title}: {failures[j]} ({j.name})" for j in jobs if j in failures],
    }


def _describe_cell(
    cell: Cell,
    found: Sequence[tuple[Path, Job | None, float | None]],
    ours: Spread | None,
    store: Path,
) -> dict[str, Any]:
    return {
        "row": cell.row,
        "column": cell.column,
        "setting": cell.setting,
        "protocol": cell.measure.protocol,
        "measure": cell.measure.title,
        "metric": cell.measure.metric,
        "paper": cell.paper,
        "paper_measure": cell.paper_title,
        "mean": ours and ours.mean,
        "sd": ours and ours.deviation,
        "runs": [
            {
                "seed": job.config.seed if job else None,
                "value": number,
                "folder": str(path.relative_to(store) if path.is_relative_to(store) else path),
            }
            for path, job, number in found
        ],
    }
