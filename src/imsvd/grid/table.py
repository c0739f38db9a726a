"""Runs gathered into rows: means and deviations over seeds, as Markdown, CSV and plain values."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from imsvd.grid.outcome import Outcome


class Spread(NamedTuple):
    """The mean of some values and their sample deviation, which a single value does not have."""

    mean: float
    deviation: float | None
    number: int


class Measure(NamedTuple):
    """A column of the table: what is read from an outcome, and how it is shown."""

    name: str
    title: str
    read: Callable[[Outcome], float | None]
    show: Callable[[float], str]
    with_deviation: bool = True
    optional: bool = False
    """Whether it has no column where no run has it."""


class Entry(NamedTuple):
    """A run that a table speaks of, done or not."""

    method: str
    lr: float | None
    """Peak learning rate as configured; None for what is not trained."""
    seed: int
    folder: str
    outcome: Outcome | None = None
    failure: str = ""

    @property
    def status(self) -> str:
        """How the run stands, in a word."""
        if self.outcome is not None:
            return "finished"
        return "failed" if self.failure else "missing"


class Row(NamedTuple):
    """A line of the table: the runs of one method with one learning rate, over all seeds."""

    method: str
    lr: float | None
    entries: tuple[Entry, ...]

    @property
    def outcomes(self) -> list[Outcome]:
        """What the finished runs have brought."""
        return [entry.outcome for entry in self.entries if entry.outcome is not None]

    @property
    def failures(self) -> list[Entry]:
        """The runs that have failed."""
        return [entry for entry in self.entries if entry.failure]

    @property
    def finished_seeds(self) -> set[int]:
        """The seeds whose runs are finished."""
        return {entry.seed for entry in self.entries if entry.outcome is not None}

    def mean_hold_out(self, seeds: Collection[int]) -> float:
        """Return the accuracy by which learning rates are chosen, over those seeds."""
        return statistics.mean(
            entry.outcome.hold_out
            for entry in self.entries
            if entry.outcome is not None and entry.seed in seeds
        )

    def spread(self, measure: Measure) -> Spread | None:
        """Return a measure over the finished runs; None if none of them has it."""
        return spread([measure.read(outcome) for outcome in self.outcomes])


def _metric(name: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: outcome.metrics.get(name)


def _show_seconds(value: float) -> str:
    """Return three digits or more from a second on, so that times line up, and never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{1 if value >= 10 else 2}f}"


def _mebibytes(outcome: Outcome) -> float | None:
    return None if outcome.peak_memory is None else outcome.peak_memory / 2**20


HOLD_OUT = Measure("hold_out", "hold-out, %", lambda outcome: outcome.hold_out, "{:.1f}".format)
MEASURES = (
    HOLD_OUT,
    Measure("knn_20", "kNN-20, %", _metric("knn_20"), "{:.1f}".format),
    Measure("knn_200", "kNN-200, %", _metric("knn_200"), "{:.1f}".format),
    Measure("linear_probe", "linear probe, %", _metric("linear_probe_top1"), "{:.1f}".format),
    Measure(
        "attributes_recovered",
        "attributes recovered",
        _metric("attributes_recovered"),
        "{:.1f}".format,
        optional=True,
    ),
    Measure("mean_best_nmi", "best NMI", _metric("mean_best_nmi"), "{:.2f}".format, optional=True),
    Measure(
        "seconds_per_epoch",
        "s/epoch",
        lambda outcome: outcome.seconds_per_epoch,
        _show_seconds,
        with_deviation=False,
    ),
    Measure("memory_mib", "peak MiB", _mebibytes, "{:,.0f}".format, with_deviation=False),
    Measure(
        "head_parameters",
        "head parameters",
        lambda outcome: float(outcome.head_parameters),
        "{:,.0f}".format,
        with_deviation=False,
    ),
)
"""The columns of a comparison, from left to right."""


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return mean and sample deviation (n − 1) of the values that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return Spread(statistics.fmean(known), deviation, len(known))


def show_spread(found: Spread | None, measure: Measure) -> str:
    """Return a cell such as "51.2 ± 0.4"."""
    if found is None:
        return "–"
    if found.deviation is None or not measure.with_deviation:
        return measure.show(found.mean)
    return f"{measure.show(found.mean)} ± {measure.show(found.deviation)}"


def measures_of(rows: Sequence[Row]) -> list[Measure]:
    """Return the measures that a table of these rows has columns for."""
    return [
        measure
        for measure in MEASURES
        if not measure.optional or any(row.spread(measure) for row in rows)
    ]


def header(measures: Sequence[Measure]) -> list[str]:
    """Return the titles of the table's columns."""
    return ["method", "lr", "seeds", *(measure.title for measure in measures)]


def cells(row: Row, measures: Sequence[Measure]) -> list[str]:
    """Return a row as people read it."""
    lr = "–" if row.lr is None else f"{row.lr:g}"
    seeds = f"{len(row.outcomes)}"
    if len(row.outcomes) < len(row.entries):
        seeds += f" of {len(row.entries)}"
    shown = [show_spread(row.spread(measure), measure) for measure in measures]
    return [row.method, lr, seeds, *shown]


def markdown(rows: Sequence[Row]) -> str:
    """Return the table as Markdown, numbers flushed right."""
    measures = measures_of(rows)
    titles = header(measures)
    shown = [cells(row, measures) for row in rows]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *shown]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def row_values(row: Row) -> dict[str, Any]:
    """Return a row as plain values for JSON."""
    values: dict[str, Any] = {"method": row.method, "lr": row.lr, "seeds": len(row.outcomes)}
    for measure in MEASURES:
        found = row.spread(measure)
        values[measure.name] = found and {"mean": found.mean, "sd": found.deviation}
    return values


def entry_values(entry: Entry) -> dict[str, Any]:
    """Return a run as plain values, the same ones for CSV and JSON."""
    outcome = entry.outcome
    return {
        "method": entry.method,
        "lr": entry.lr,
        "seed": entry.seed,
        "status": entry.status,
        **{measure.name: outcome and measure.read(outcome) for measure in MEASURES},
        "training_seconds": outcome and outcome.training_seconds,
        "parallel": outcome and outcome.parallel,
        "threads": outcome and outcome.threads,
        "device": outcome and outcome.device,
        "folder": entry.folder,
        "failure": entry.failure,
    }


def csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines with the same keys as CSV; what is not known stays empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
