"""Rows and columns of a comparison: means and deviations over seeds, and the files written of them.

comparison.md, comparison.csv, comparison.json and accuracy.png.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from imsvd.code_measures import MATCHED
from imsvd.config import Config
from imsvd.explanations.meaning import BINS, RECOVERED
from imsvd.figures import draw_comparison
from imsvd.files import write_atomically
from imsvd.grid.jobs import Outcome
from imsvd.progress import counted
from imsvd.provenance import environment

EQUAL = ("data", "backbone", "views", "training")
"""Settings that are the same for all methods of a comparison."""


class Spread(NamedTuple):
    """Mean and sample deviation; a single value has no deviation."""

    mean: float
    deviation: float | None
    number: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return the mean and sample deviation (n − 1) of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return Spread(statistics.fmean(known), deviation, len(known))


class ComparisonColumn(NamedTuple):
    """A column of the table: which value of an outcome it shows, and how."""

    name: str
    title: str
    read: Callable[[Outcome], float | None]
    show: Callable[[float], str] = "{:.1f}".format
    with_deviation: bool = True
    optional: bool = False
    """Hide the column if no run has a value."""
    of_codes: bool = False
    """Whether only methods with discrete codes have it."""

    def cell(self, found: Spread | None) -> str:
        """Return a cell such as "51.2 ± 0.4"."""
        if found is None:
            return "–"
        if found.deviation is None or not self.with_deviation:
            return self.show(found.mean)
        return f"{self.show(found.mean)} ± {self.show(found.deviation)}"


class ComparedRun(NamedTuple):
    """One run of a comparison, finished or not."""

    method: str
    lr: float | None
    """Configured peak learning rate; None for the untrained encoder."""
    seed: int
    folder: str
    outcome: Outcome | None = None
    failure: str = ""

    @property
    def status(self) -> str:
        """One of finished, failed and missing."""
        if self.outcome is not None:
            return "finished"
        return "failed" if self.failure else "missing"

    def values(self) -> dict[str, Any]:
        """Return the run as plain values, the same for CSV and JSON."""
        outcome = self.outcome
        return {
            "method": self.method,
            "lr": self.lr,
            "seed": self.seed,
            "status": self.status,
            **{column.name: outcome and column.read(outcome) for column in COLUMNS},
            "training_seconds": outcome and outcome.training_seconds,
            "parallel": outcome and outcome.parallel,
            "threads": outcome and outcome.threads,
            "device": outcome and outcome.device,
            "folder": self.folder,
            "failure": self.failure,
        }


class ComparisonRow(NamedTuple):
    """The runs of one method with one learning rate, over all seeds."""

    method: str
    lr: float | None
    runs: tuple[ComparedRun, ...]

    @property
    def outcomes(self) -> list[Outcome]:
        """Outcomes of the finished runs."""
        return [run.outcome for run in self.runs if run.outcome is not None]

    @property
    def failures(self) -> list[ComparedRun]:
        """The failed runs."""
        return [run for run in self.runs if run.failure]

    @property
    def finished_seeds(self) -> set[int]:
        """Seeds of the finished runs."""
        return {run.seed for run in self.runs if run.outcome is not None}

    def mean_hold_out(self, seeds: Collection[int]) -> float:
        """Return the hold-out accuracy, which selects the learning rate, over these seeds."""
        return statistics.mean(
            run.outcome.hold_out
            for run in self.runs
            if run.outcome is not None and run.seed in seeds
        )

    def spread(self, column: ComparisonColumn) -> Spread | None:
        """Return mean and deviation of a column over the finished runs."""
        return spread([column.read(outcome) for outcome in self.outcomes])

    def cells(self, columns: Sequence[ComparisonColumn]) -> list[str]:
        """Return the row as text."""
        lr = "–" if self.lr is None else f"{self.lr:g}"
        seeds = f"{len(self.outcomes)}"
        if len(self.outcomes) < len(self.runs):
            seeds += f" of {len(self.runs)}"
        return [self.method, lr, seeds, *(column.cell(self.spread(column)) for column in columns)]

    def values(self) -> dict[str, Any]:
        """Return the row as plain values for JSON."""
        values: dict[str, Any] = {"method": self.method, "lr": self.lr, "seeds": len(self.outcomes)}
        for column in COLUMNS:
            found = self.spread(column)
            values[column.name] = found and {"mean": found.mean, "sd": found.deviation}
        return values


def _metric(name: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: outcome.metrics.get(name)


def _show_seconds(value: float) -> str:
    """Format seconds with about three significant digits and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{1 if value >= 10 else 2}f}"


def _show_share(value: float) -> str:
    return f"{100 * value:.1f}"


def _code_column(name: str, title: str, **settings: Any) -> ComparisonColumn:
    return ComparisonColumn(name, title, _metric(name), optional=True, of_codes=True, **settings)


_COUNT: Any = {"show": "{:,.0f}".format, "with_deviation": False}

COLUMNS = (
    ComparisonColumn("hold_out", "hold-out, %", lambda outcome: outcome.hold_out),
    ComparisonColumn("knn_20", "kNN-20, %", _metric("knn_20")),
    ComparisonColumn("knn_200", "kNN-200, %", _metric("knn_200")),
    ComparisonColumn("linear_probe", "linear probe, %", _metric("linear_probe_top1")),
    ComparisonColumn(
        "attributes_recovered",
        "attributes recovered",
        _metric("attributes_recovered"),
        optional=True,
    ),
    ComparisonColumn(
        "mean_best_nmi", "best NMI", _metric("mean_best_nmi"), "{:.2f}".format, optional=True
    ),
    _code_column("share_decided", "decided, %", show=_show_share),
    _code_column("shared_nats", "shared nats", show="{:.3f}".format),
    _code_column("purity", "purity, %", show=_show_share),
    _code_column("monosemanticity_above_chance", "monosemanticity", show="{:.3f}".format),
    _code_column("stability", "stability, %", show=_show_share, with_deviation=False),
    ComparisonColumn(
        "seconds_per_epoch",
        "s/epoch",
        lambda outcome: outcome.seconds_per_epoch,
        _show_seconds,
        with_deviation=False,
    ),
    ComparisonColumn("memory_mib", "peak MiB", lambda outcome: outcome.peak_mebibytes, **_COUNT),
    ComparisonColumn(
        "head_parameters", "head parameters", lambda outcome: outcome.head_parameters, **_COUNT
    ),
)


class Comparison(NamedTuple):
    """The results of a comparison so far."""

    config: Config
    """Configuration of any run; the settings in `EQUAL` are the same for all."""
    every: list[ComparisonRow]
    """One row per method or variant and learning rate."""
    variants: Mapping[str, Sequence[str]] = {}
    """Method and changed settings of every variant, by its name."""

    @property
    def rows(self) -> list[ComparisonRow]:
        """One row per method, with the selected learning rate."""
        methods = dict.fromkeys(row.method for row in self.every)
        return [choose([row for row in self.every if row.method == name]) for name in methods]

    @property
    def runs(self) -> list[ComparedRun]:
        """All runs."""
        return [run for row in self.every for run in row.runs]

    @property
    def failures(self) -> list[ComparedRun]:
        """The failed runs."""
        return [run for run in self.runs if run.failure]

    @property
    def outcomes(self) -> list[Outcome]:
        """Outcomes of the finished runs."""
        return [outcome for row in self.every for outcome in row.outcomes]

    def rates(self, method: str) -> list[float]:
        """Return the learning rates tried with a method; none for the untrained encoder."""
        return [row.lr for row in self.every if row.method == method and row.lr is not None]

    @property
    def chose_lr(self) -> bool:
        """Whether the learning rate was selected from several."""
        return len(self.rows) < len(self.every)


def choose(rows: Sequence[ComparisonRow]) -> ComparisonRow:
    """Return the row of one method that is best on held-out training images.

    Learning rates with more failures than others are not selected. While runs are missing, only
    seeds that all learning rates have finished count.
    """
    begun = [row for row in rows if row.outcomes]
    if not begun:
        return rows[0]
    fewest = min(len(row.failures) for row in begun)
    sound = [row for row in begun if len(row.failures) == fewest]
    common = set.intersection(*(row.finished_seeds for row in sound))
    return max(sound, key=lambda row: row.mean_hold_out(common or row.finished_seeds))


def columns_of(rows: Sequence[ComparisonRow]) -> list[ComparisonColumn]:
    """Return the columns that a table of these rows shows."""
    return [
        column
        for column in COLUMNS
        if not column.optional or any(row.spread(column) for row in rows)
    ]


def header(columns: Sequence[ComparisonColumn]) -> list[str]:
    """Return the titles of the table."""
    return ["method", "lr", "seeds", *(column.title for column in columns)]


def markdown(rows: Sequence[ComparisonRow]) -> str:
    """Return the table as Markdown, with numbers aligned right."""
    columns = columns_of(rows)
    titles = header(columns)
    shown = [row.cells(columns) for row in rows]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *shown]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines with equal keys as CSV; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Write the current results; each file is replaced atomically."""
    facts = {"version": version("imsvd"), **environment()}
    chosen = comparison.rows
    runs = [
        run.values() | {"chosen": row in chosen} for row in comparison.every for run in row.runs
    ]
    content = {
        "environment": facts,
        "equal": comparison.config.model_dump(mode="json", include=set(EQUAL)),
        "variants": {name: list(words) for name, words in comparison.variants.items()},
        "table": [row.values() for row in chosen],
        "runs": [
            values | {"curve": [p.model_dump() for p in run.outcome.curve] if run.outcome else []}
            for values, run in zip(runs, comparison.runs, strict=True)
        ],
    }
    write_atomically(out / "comparison.json", (json.dumps(content, indent=2) + "\n").encode())
    write_atomically(out / "comparison.csv", csv_text(runs).encode())
    write_atomically(out / "comparison.md", _page(comparison, facts).encode())
    curves = {
        row.method: [
            [(point.epoch, point.seconds, point.accuracy) for point in outcome.curve]
            for outcome in row.outcomes
            if outcome.curve
        ]
        for row in chosen
    }
    drawable = {method: runs for method, runs in curves.items() if runs}
    if drawable:
        draw_comparison(drawable, out / "accuracy.png")
    else:  # remove the plot of an earlier comparison
        (out / "accuracy.png").unlink(missing_ok=True)


def notes(comparison: Comparison) -> list[str]:
    """Return the notes below the table, a sentence or two each."""
    config, outcomes = comparison.config, comparison.outcomes
    backbone = config.backbone.name
    if outcomes:
        size = max(outcome.backbone_parameters for outcome in outcomes)
        backbone += f" with {size / 1e6:.1f} million parameters"
    on_gpu = any(outcome.device != "cpu" for outcome in outcomes)
    lines = [
        f"All methods use {backbone}, {counted(config.training.epochs, 'epoch')}, batches of "
        f"{config.training.batch_size}, and the same images, views and seeds. "
        "Test accuracies: mean ± sample deviation over seeds.",
        *(
            f"{name}: {method} with {', '.join(settings)}."
            for name, (method, *settings) in comparison.variants.items()
        ),
        *([_selection(comparison)] if comparison.chose_lr else []),
        *_grid_edges(comparison),
        "s/epoch: median over the epochs of a run, without evaluation. Peak memory: of the training "
        f"process{' on its GPU' if on_gpu else ''}. Head parameters: trained, outside the backbone.",
        *_explainability(outcomes),
        *_codes(outcomes),
        *_parallel(outcomes),
    ]
    if len(outcomes) < len(comparison.runs):
        lines.append(f"{len(outcomes)} of {len(comparison.runs)} runs are finished.")
    for run in comparison.failures:
        lr = "" if run.lr is None else f", lr {run.lr:g}"
        lines.append(f"Failed: {run.method}{lr}, seed {run.seed}: {run.failure}")
    return lines


def _selection(comparison: Comparison) -> str:
    rates = max(len(comparison.rates(row.method)) for row in comparison.rows)
    return (
        f"The learning rate of each method was selected from {rates} by hold-out accuracy: kNN-20 of a tenth "
        "of the training images, seen in training without labels, against the rest. "
        "Test images were not used."
        + (" Learning rates with failed runs were not selected." if comparison.failures else "")
    )


def _grid_edges(comparison: Comparison) -> list[str]:
    """Name the methods whose selected learning rate is the largest or smallest tried."""
    if any(run.status == "missing" for run in comparison.runs):
        return []
    chosen = [(row, comparison.rates(row.method)) for row in comparison.rows]
    lines = []
    for end, which, beyond in ((max, "largest", "larger"), (min, "smallest", "smaller")):
        # Of two rates, one is always at an edge.
        names = [row.method for row, rates in chosen if len(rates) > 2 and row.lr == end(rates)]
        if names:
            lines.append(
                f"Best with the {which} learning rate tried: {', '.join(names)}. A {beyond} one may be "
                "better: add a factor to --lr-factors; only its runs are trained."
            )
    return lines


def _explainability(outcomes: Sequence[Outcome]) -> list[str]:
    if not any("attributes_recovered" in outcome.metrics for outcome in outcomes):
        return []
    return [
        "Attributes recovered: number of attributes that a single variable predicts clearly better than chance "
        f"(normalized mutual information at least {RECOVERED} above that of shuffled values). Best NMI: of the "
        "best variable, averaged over attributes. For methods without variables, each feature is cut into "
        f"{BINS} equally frequent bins."
    ]


def _codes(outcomes: Sequence[Outcome]) -> list[str]:
    if not any("share_decided" in outcome.metrics for outcome in outcomes):
        return []
    return [
        "Codes of test images, for methods that have them. Decided: variables with a probability above 0.9. "
        "Shared nats: mean mutual information of two variables. Purity: share of a unit's images with its most "
        "frequent label. Monosemanticity: mean cosine similarity of two images of a unit under the run's own "
        "features, less that of random sets. Stability: share of units that the run of another seed has too, "
        f"with a Jaccard overlap of at least {MATCHED}; mean over pairs of seeds. Earlier versions measured none "
        "of these."
    ]


def _parallel(outcomes: Sequence[Outcome]) -> list[str]:
    most = max((outcome.parallel for outcome in outcomes), default=1)
    if most == 1:
        return []
    shared = sum(outcome.parallel > 1 for outcome in outcomes)
    which = "Times" if shared == len(outcomes) else f"Times of {counted(shared, 'run')}"
    return [f"{which} were measured with up to {most} runs at a time on this machine."]


def _page(comparison: Comparison, facts: Mapping[str, str]) -> str:
    outcomes = comparison.outcomes
    devices = {outcome.device for outcome in outcomes} - {"cpu"}
    processors = {outcome.cpu for outcome in outcomes} or {facts["cpu"]}
    hardware = "; ".join([*sorted(processors), *sorted(devices)])
    # Runs may be older than this page and come from other commits.
    commits = {outcome.commit for outcome in outcomes} or {facts["commit"]}
    lines = [
        f"# Comparison on {comparison.config.data.source}",
        "",
        markdown(comparison.rows),
        *(f"{note}\n" for note in notes(comparison)),
        *(
            ["## Every learning rate", "", markdown(comparison.every)]
            if comparison.chose_lr
            else []
        ),
        f"- command: `{facts['command']}`",
        f"- date: {facts['date']}",
        f"- hardware: {hardware}",
        f"- software: imsvd {facts['version']} (commit {', '.join(sorted(commits))}), torch {facts['torch']}, "
        f"Python {facts['python']}",
    ]
    return "\n".join(lines) + "\n"
