"""`imsvd bench loss`: IMSVD's loss against its floor, its dense form and its peers.

Every measurement runs in a fresh process; repeats go round all forms in turn, so that a slow
minute of the machine falls on all of them, and the table shows medians and ratios.
"""

import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from imsvd.bench.loss_case import Case, Measurement
from imsvd.bench.loss_forms import FORMS
from imsvd.bench.rounds import TableContent, cells_of, measure_in_turn, show_table, write_tables
from imsvd.errors import InputError
from imsvd.provenance import environment

SIZES = ((256, 8160), (2048, 8160), (2048, 16320), (512, 65280))


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        form: key of `FORMS`.
        batch: samples of all ranks together.
        width: embedding width.
        ranks: gloo processes.
        seconds: median time of forward and backward, or None if skipped.
        extra_mib: largest peak memory beyond the inputs, per process, or None.
        embeddings: that memory in units of one `(batch, width)` float32 embedding, or None.
        times_floor: time over that of the three matrix products, or None.
        times_ours: time over that of ours on as many ranks, or None.
        skipped: why it was not measured, or empty.
    """

    form: str
    batch: int
    width: int
    ranks: int
    seconds: float | None = None
    extra_mib: float | None = None
    embeddings: float | None = None
    times_floor: float | None = None
    times_ours: float | None = None
    skipped: str = ""


def run(
    sizes: Sequence[tuple[int, int]] = SIZES,
    ranks: Sequence[int] = (1,),
    repeats: int = 3,
    console: Console | None = None,
    *,
    units: int = 80,
    forms: Sequence[str] = tuple(FORMS),
    output: Path | None = None,
) -> list[Row]:
    """Measure, show the table, and write `output` as .json and .md if given.

    Args:
        sizes: pairs of global batch and width.
        ranks: numbers of gloo processes; above 1 only ours is measured, the batch being shared.
        repeats: fresh processes per case.
        console: where progress and the table go.
        units: units per variable.
        forms: keys of `FORMS`.
        output: path of the results, whose suffix is replaced.
    """
    console = console or Console()
    _check(sizes, ranks, repeats, units)
    cases = [
        Case(form, batch, width, units, max(1, (os.cpu_count() or 1) // count), count)
        for (batch, width), count in itertools.product(sizes, ranks)
        for form in forms
        if count == 1 or form == "ours"
    ]
    reasons = {case: _reason_to_skip(case) for case in cases}
    measured = measure_in_turn(
        [c for c in cases if not reasons[c]], repeats, _measure, _describe, console
    )
    rows = _with_ratios([_row(case, measured.get(case), reasons[case]) for case in cases])
    for table in _tables(rows):
        show_table(table, console)
    if output is not None:
        write(rows, output)
    return rows


def _check(
    sizes: Sequence[tuple[int, int]], ranks: Sequence[int], repeats: int, units: int
) -> None:
    if repeats < 1:
        raise InputError(f"repeats = {repeats}: choose at least 1.")
    for (batch, width), count in itertools.product(sizes, ranks):
        if count < 1 or batch % count:
            raise InputError(f"ranks = {count} does not divide the batch of {batch}.")
        if width % units:
            raise InputError(f"Width {width} is not divisible by units {units}.")


def _reason_to_skip(case: Case) -> str:
    form = FORMS[case.form]
    if form.needs and importlib.util.find_spec(form.needs) is None:
        return f"{form.needs} is not installed"
    needed = 4 * (form.matrices * case.width**2 + 8 * case.batch * case.width * case.ranks)
    available = _available_memory()
    if needed > available:
        return f"needs about {needed / 2**30:.0f} GiB, {available / 2**30:.0f} GiB are available"
    return ""


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _describe(case: Case) -> str:
    return f"{FORMS[case.form].label}, {case.batch:,} x {case.width:,}"


def _measure(case: Case) -> Measurement:
    """Run one case in as many fresh processes as it has ranks."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(case.ranks):
            own = case._replace(rank=rank, meeting_point=f"{folder}/meeting-point")
            command = [sys.executable, "-m", "imsvd.bench.loss_case", json.dumps(own._asdict())]
            environment = {**os.environ, "OMP_NUM_THREADS": str(case.threads)}
            processes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            )
        outputs = [process.communicate()[0] for process in processes]
    failed = [process.returncode for process in processes if process.returncode]
    if failed:
        raise RuntimeError(f"{case} ended with exit code {failed[0]}; its error is printed above.")
    return Measurement(**json.loads(outputs[0].splitlines()[-1]))


def _row(case: Case, measurements: list[Measurement] | None, reason: str) -> Row:
    row = Row(case.form, case.batch, case.width, case.ranks, skipped=reason)
    if not measurements:
        return row
    extra = max(measurement.extra_bytes for measurement in measurements)
    return row._replace(
        seconds=statistics.median(measurement.seconds for measurement in measurements),
        extra_mib=extra / 2**20,
        embeddings=extra / (4 * case.batch * case.width),
    )


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    seconds = {(row.form, row.batch, row.width, row.ranks): row.seconds for row in rows}

    def ratio(row: Row, form: str, ranks: int) -> float | None:
        other = seconds.get((form, row.batch, row.width, ranks))
        return row.seconds / other if row.seconds and other else None

    return [
        row._replace(times_floor=ratio(row, "floor", 1), times_ours=ratio(row, "ours", row.ranks))
        for row in rows
    ]


_COLUMNS = ("loss", "ranks", "seconds", "x floor", "x ours", "MiB", "x N D")


def _cells(row: Row) -> list[str]:
    ratios = [row.times_floor, row.times_ours]
    shown = ["" if value is None else f"{value:.2f}" for value in ratios]
    memory = [f"{row.extra_mib or 0:.0f}", f"{row.embeddings or 0:.1f}"]
    values = [str(row.ranks), f"{row.seconds or 0:.3f}", *shown, *memory]
    return cells_of(FORMS[row.form].label, values, row.skipped)


def _tables(rows: Sequence[Row]) -> list[TableContent]:
    sizes = dict.fromkeys((row.batch, row.width) for row in rows)
    return [
        TableContent(
            f"Batch {batch:,}, width {width:,}",
            _COLUMNS,
            [_cells(row) for row in rows if (row.batch, row.width) == (batch, width)],
        )
        for batch, width in sizes
    ]


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the results as `path` with suffix .json and as Markdown tables with suffix .md."""
    content = [row._asdict() for row in rows]
    write_tables(path, "Loss, forward and backward", environment(), content, _tables(rows))
