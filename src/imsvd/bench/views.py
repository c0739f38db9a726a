"""`imsvd bench views`: two views of an image, by our pipeline and by those people use instead.

Every measurement runs in a fresh process on one thread; repeats go round all contenders in turn, so
that a slow minute of the machine falls on all of them. The table shows medians.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from imsvd.bench.rounds import (
    TableContent,
    cells_of,
    check_duration,
    measure_afresh,
    measure_in_turn,
    missing_packages,
    package_versions,
    show_table,
    write_tables,
)
from imsvd.bench.views_case import Case, Measurement
from imsvd.bench.views_pipelines import CONTENDERS, Task
from imsvd.errors import InputError
from imsvd.provenance import environment

TITLES: dict[Task, str] = {
    "photographs": "JPEG files to two 224-pixel views",
    "small": "32-pixel images in memory to two views",
}
_PACKAGES = ("torchvision", "pillow", "opencv-python-headless", "simplejpeg")
_COMPETITORS = ("lightly", "albumentations", "kornia")
# Every batch is as large as the one before. Keeping its memory, rather than giving it back to the
# system and taking it again, spares all contenders page faults that can cost more than the work.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        task: key of `TITLES`.
        contender: key of `CONTENDERS`.
        images_per_second: median on one core, each image made into two views, or None if skipped.
        milliseconds: of one core per image, or None.
        times_ours: images a second of ours over those of this one, or None.
        skipped: why it was not measured, or empty.
    """

    task: Task
    contender: str
    images_per_second: float | None = None
    milliseconds: float | None = None
    times_ours: float | None = None
    skipped: str = ""


def run(
    images: Path | None,
    small: Path | None = None,
    seconds: float = 3.0,
    console: Console | None = None,
    output: Path | None = None,
    *,
    repeats: int = 3,
    contenders: Sequence[str] = tuple(CONTENDERS),
) -> list[Row]:
    """Measure, show the tables, and write `output` as .json and .md if given.

    Args:
        images: folder of JPEG photographs, or None to leave them out.
        small: folder of small images of one size, or None to leave them out.
        seconds: processor time of one measurement, rounded up to a whole pass over the images.
        console: where progress and the tables go.
        output: path of the results, whose suffix is replaced.
        repeats: fresh processes per contender.
        contenders: keys of `CONTENDERS`.
    """
    console = console or Console()
    folders: dict[Task, Path | None] = {"photographs": images, "small": small}
    check_duration(seconds, repeats)
    if not any(folders.values()):
        raise InputError("give a folder of photographs, of small images, or both.")
    cases = [
        Case(contender, task, str(folder), seconds)
        for task, folder in folders.items()
        if folder is not None
        for contender in contenders
    ]
    reasons = {case: _reason_to_skip(case) for case in cases}
    measured = measure_in_turn(
        [case for case in cases if not reasons[case]], repeats, _measure, _describe, console
    )
    rows = _with_ratios([_row(case, measured.get(case), reasons[case]) for case in cases])
    for table in _tables(rows):
        show_table(table, console)
    if output is not None:
        write(rows, output)
    return rows


def _reason_to_skip(case: Case) -> str:
    return missing_packages(CONTENDERS[case.contender].needs)


def _describe(case: Case) -> str:
    return f"{CONTENDERS[case.contender].label}, {case.task}"


def _measure(case: Case) -> Measurement:
    variables = {**_MEMORY, "OMP_NUM_THREADS": "1"}
    return Measurement(**measure_afresh("imsvd.bench.views_case", case._asdict(), variables))


def _row(case: Case, measurements: list[Measurement] | None, reason: str) -> Row:
    if not measurements:
        return Row(case.task, case.contender, skipped=reason)
    rate = statistics.median(one.images / one.seconds for one in measurements)
    return Row(case.task, case.contender, rate, 1000 / rate)


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    ours = {row.task: row.images_per_second for row in rows if row.contender == "ours"}

    def ratio(row: Row) -> float | None:
        reference = ours.get(row.task)
        return reference / row.images_per_second if reference and row.images_per_second else None

    return [row._replace(times_ours=ratio(row)) for row in rows]


_COLUMNS = ("pipeline", "images/s per core", "ms per image", "ours is faster by")


def _cells(row: Row) -> list[str]:
    ratio = "" if row.times_ours is None or row.contender == "ours" else f"{row.times_ours:.2f} x"
    values = [f"{row.images_per_second or 0:,.0f}", f"{row.milliseconds or 0:.3f}", ratio]
    return cells_of(CONTENDERS[row.contender].label, values, row.skipped)


def _tables(rows: Sequence[Row]) -> list[TableContent]:
    measured = {row.task for row in rows}
    return [
        TableContent(title, _COLUMNS, [_cells(row) for row in rows if row.task == task])
        for task, title in TITLES.items()
        if task in measured
    ]


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the results as `path` with suffix .json and as Markdown tables with suffix .md."""
    facts = {**environment(), **package_versions((*_PACKAGES, *_COMPETITORS))}
    content = [row._asdict() for row in rows]
    write_tables(path, "Two views of an image", facts, content, _tables(rows))
