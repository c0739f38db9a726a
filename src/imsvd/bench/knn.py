"""`imsvd bench knn`: our exact nearest neighbors against faiss and scikit-learn.

Every measurement runs in a fresh process; repeats go round all searches in turn, so that a slow
minute of the machine falls on all of them, and the table shows medians and ratios. Features are
random, of length 1; the time is that from features to neighbors, an index included.
"""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from imsvd.bench.knn_case import Case, Measurement
from imsvd.bench.knn_searches import SEARCHES
from imsvd.bench.rounds import (
    TableContent,
    cells_of,
    measure_afresh,
    measure_in_turn,
    missing_packages,
    show_table,
    write_tables,
)
from imsvd.errors import InputError
from imsvd.provenance import environment

# Mean similarities of exact searches differ by rounding only.
_SAME_ANSWER = 1e-5


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        search: key of `SEARCHES`.
        queries: how many ask.
        bank: how many answer.
        width: of the features.
        neighbors: k.
        threads: of each search.
        seconds: median, or None if skipped.
        times_ours: time over that of ours, or None.
        extra_mib: largest peak memory beyond the features, or None.
        total_mib: largest peak memory of the whole process, or None.
        mean_similarity: of all neighbors found, or None.
        skipped: why it was not measured, or empty.
    """

    search: str
    queries: int
    bank: int
    width: int
    neighbors: int
    threads: int
    seconds: float | None = None
    times_ours: float | None = None
    extra_mib: float | None = None
    total_mib: float | None = None
    mean_similarity: float | None = None
    skipped: str = ""


def run(
    queries: int = 10_000,
    bank: int = 200_000,
    width: int = 512,
    neighbors: int = 200,
    repeats: int = 3,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Measure, show the table, and write `output` as .json and .md if given.

    Args:
        queries: features that ask.
        bank: features that answer.
        width: of the features.
        neighbors: k.
        repeats: fresh processes per search.
        console: where progress and the table go.
        output: path of the results, whose suffix is replaced.
    """
    console = console or Console()
    if min(queries, width, neighbors, repeats) < 1 or neighbors > bank:
        raise InputError("all numbers must be at least 1, and neighbors at most bank.")
    threads = os.cpu_count() or 1
    cases = [Case(name, queries, bank, width, neighbors, threads) for name in SEARCHES]
    reasons = {case: _reason_to_skip(case) for case in cases}
    measured = measure_in_turn(
        [case for case in cases if not reasons[case]], repeats, _measure, _describe, console
    )
    rows = _with_ratios([_row(case, measured.get(case), reasons[case]) for case in cases])
    _require_same_answer(rows)
    show_table(_table(rows), console)
    if output is not None:
        write(rows, output)
    return rows


def _reason_to_skip(case: Case) -> str:
    needs = SEARCHES[case.search].needs
    return missing_packages([needs] if needs else [])


def _describe(case: Case) -> str:
    return SEARCHES[case.search].label


def _measure(case: Case) -> Measurement:
    """Run one case in a fresh process."""
    variables = {"OMP_NUM_THREADS": str(case.threads)}
    return Measurement(**measure_afresh("imsvd.bench.knn_case", case._asdict(), variables))


def _row(case: Case, measurements: list[Measurement] | None, reason: str) -> Row:
    row = Row(**case._asdict(), skipped=reason)
    if not measurements:
        return row
    return row._replace(
        seconds=statistics.median(one.seconds for one in measurements),
        extra_mib=max(one.extra_bytes for one in measurements) / 2**20,
        total_mib=max(one.total_bytes for one in measurements) / 2**20,
        mean_similarity=measurements[0].mean_similarity,
    )


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    (ours,) = (row.seconds for row in rows if row.search == "ours")
    return [
        row._replace(times_ours=row.seconds / ours if row.seconds and ours else None)
        for row in rows
    ]


def _require_same_answer(rows: Sequence[Row]) -> None:
    """Refuse to compare the speed of searches that found something else."""
    found = [row.mean_similarity for row in rows if row.mean_similarity is not None]
    if max(found) - min(found) > _SAME_ANSWER:
        raise RuntimeError(f"The searches disagree: {[row[:1] + row[10:11] for row in rows]}")


_COLUMNS = ("search", "seconds", "x ours", "MiB beside the features", "MiB in all")


def _cells(row: Row) -> list[str]:
    numbers = [
        f"{row.seconds or 0:.2f}",
        f"{row.times_ours or 0:.2f}",
        f"{row.extra_mib or 0:.0f}",
        f"{row.total_mib or 0:.0f}",
    ]
    return cells_of(SEARCHES[row.search].label, numbers, row.skipped)


def _title(row: Row) -> str:
    return (
        f"The {row.neighbors} nearest of {row.bank:,} features for {row.queries:,} queries, "
        f"width {row.width}, {row.threads} threads"
    )


def _table(rows: Sequence[Row]) -> TableContent:
    return TableContent(_title(rows[0]), _COLUMNS, [_cells(row) for row in rows])


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the results as `path` with suffix .json and as a Markdown table with suffix .md."""
    values = [row._asdict() for row in rows]
    write_tables(path, "Nearest neighbors", environment(), values, [_table(rows)])
