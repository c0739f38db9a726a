"""`imsvd bench knn`: our exact nearest neighbours against faiss and scikit-learn.

Every measurement runs in a fresh process; repeats go round all searches in turn, so that a slow
minute of the machine falls on all of them, and the table shows medians and ratios. Features are
random, of length 1; the time is that from features to neighbours, an index included.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from imsvd.bench.knn_case import Case, Measurement
from imsvd.bench.knn_searches import SEARCHES
from imsvd.bench.loss import environment
from imsvd.bench.rounds import measure_in_turn
from imsvd.errors import InputError

# Mean similarities of exact searches differ by rounding only.
_SAME_ANSWER = 1e-5


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        search: key of `SEARCHES`.
        queries: how many ask.
        bank: how many answer.
        width: of the features.
        neighbours: k.
        threads: of each search.
        seconds: median, or None if skipped.
        times_ours: time over that of ours, or None.
        extra_mib: largest peak memory beyond the features, or None.
        total_mib: largest peak memory of the whole process, or None.
        mean_similarity: of all neighbours found, or None.
        skipped: why it was not measured, or empty.
    """

    search: str
    queries: int
    bank: int
    width: int
    neighbours: int
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
    neighbours: int = 200,
    repeats: int = 3,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Measure, show the table, and write `output` as .json and .md if given.

    Args:
        queries: features that ask.
        bank: features that answer.
        width: of the features.
        neighbours: k.
        repeats: fresh processes per search.
        console: where progress and the table go.
        output: path of the results, whose suffix is replaced.
    """
    console = console or Console()
    if min(queries, width, neighbours, repeats) < 1 or neighbours > bank:
        raise InputError("all numbers must be at least 1, and neighbours at most bank.")
    threads = os.cpu_count() or 1
    cases = [Case(name, queries, bank, width, neighbours, threads) for name in SEARCHES]
    reasons = {case: _reason_to_skip(case) for case in cases}
    measured = measure_in_turn(
        [case for case in cases if not reasons[case]], repeats, _measure, _describe, console
    )
    rows = _with_ratios([_row(case, measured.get(case), reasons[case]) for case in cases])
    _require_same_answer(rows)
    console.print(_table(rows))
    if output is not None:
        write(rows, output)
    return rows


def _reason_to_skip(case: Case) -> str:
    needs = SEARCHES[case.search].needs
    missing = needs and importlib.util.find_spec(needs) is None
    return f"{needs} is not installed" if missing else ""


def _describe(case: Case) -> str:
    return SEARCHES[case.search].label


def _measure(case: Case) -> Measurement:
    """Run one case in a fresh process."""
    command = [sys.executable, "-m", "imsvd.bench.knn_case", json.dumps(case._asdict())]
    variables = {**os.environ, "OMP_NUM_THREADS": str(case.threads)}
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=variables, check=False)
    if ended.returncode:
        raise RuntimeError(
            f"{case} ended with exit code {ended.returncode}; its error is printed above."
        )
    return Measurement(**json.loads(ended.stdout.splitlines()[-1]))


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
    label = SEARCHES[row.search].label
    if row.skipped:
        return [label, f"skipped: {row.skipped}", "", "", ""]
    return [
        label,
        f"{row.seconds or 0:.2f}",
        f"{row.times_ours or 0:.2f}",
        f"{row.extra_mib or 0:.0f}",
        f"{row.total_mib or 0:.0f}",
    ]


def _title(row: Row) -> str:
    return (
        f"The {row.neighbours} nearest of {row.bank:,} features for {row.queries:,} queries, "
        f"width {row.width}, {row.threads} threads"
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title=_title(rows[0]))
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "search" else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the results as `path` with suffix .json and as a Markdown table with suffix .md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = environment()
    content = {"environment": facts, "rows": [row._asdict() for row in rows]}
    path.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n")
    lines = [f"# {_title(rows[0])}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
