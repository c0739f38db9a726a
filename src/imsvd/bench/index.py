"""`imsvd bench index`: how long a folder of many images takes to open, at first and again.

The folder is made for the purpose, of tiny files in a hundred classes, and removed afterwards. At
first means: no listing of it has been kept. The system may well remember the folder, as it does
after unpacking; a disk that has to be read adds the same to every contender. The table shows medians.
"""

import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from rich.console import Console
from torchvision.datasets import ImageFolder

from imsvd.bench.rounds import TableContent, measure_in_turn, show_table, write_tables
from imsvd.datasets import ImageFolderSource
from imsvd.errors import InputError
from imsvd.provenance import environment

CLASSES = 100
# A folder that changed a moment ago is listed but not remembered: it might change again unseen.
_SETTLING_SECONDS = 2.5


class Measurement(NamedTuple):
    """Seconds to open the folder when nothing is known of it, and once more."""

    first: float
    again: float


class Row(NamedTuple):
    """One line of the table: medians in seconds, and how many times as long as ours each took."""

    contender: str
    images: int
    first: float
    again: float
    times_ours_first: float
    times_ours_again: float


CONTENDERS: dict[str, Callable[[Path], object]] = {
    "imsvd": ImageFolderSource,
    "torchvision ImageFolder": ImageFolder,
}


def run(
    images: int = 20_000,
    repeats: int = 3,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Measure, show the table, and write `output` as .json and .md if given.

    Args:
        images: in the folder.
        repeats: measurements per contender, each on a folder without a kept listing.
        console: where progress and the table go.
        output: path of the results, whose suffix is replaced.
    """
    console = console or Console()
    if images < CLASSES or repeats < 1:
        raise InputError(f"images must be at least {CLASSES}, one per class, and repeats 1.")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "images"
        make_folder(folder, images)
        time.sleep(_SETTLING_SECONDS)
        measured = measure_in_turn(
            list(CONTENDERS), repeats, lambda name: _measure(name, folder), str, console
        )
    rows = _rows(images, measured)
    show_table(_table(rows), console)
    if output is not None:
        write(rows, output)
    return rows


def make_folder(folder: Path, images: int) -> None:
    """Write tiny JPEG files, spread evenly over the classes."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    classes = [folder / f"class-{number:02d}" for number in range(CLASSES)]
    for place in classes:
        place.mkdir(parents=True)
    for number in range(images):
        (classes[number % CLASSES] / f"{number:08d}.jpg").write_bytes(buffer.getvalue())


def _measure(contender: str, folder: Path) -> Measurement:
    with tempfile.TemporaryDirectory() as cache, _kept_in(cache):
        return Measurement(*(_seconds(contender, folder) for _ in range(2)))


def _seconds(contender: str, folder: Path) -> float:
    before = time.perf_counter()
    CONTENDERS[contender](folder)
    return time.perf_counter() - before


@contextmanager
def _kept_in(folder: str) -> Iterator[None]:
    """Keep listings in `folder` rather than among the user's."""
    before = os.environ.get("IMSVD_DATA")
    os.environ["IMSVD_DATA"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["IMSVD_DATA"]
        else:
            os.environ["IMSVD_DATA"] = before


def _rows(images: int, measured: dict[str, list[Measurement]]) -> list[Row]:
    medians = {
        name: Measurement(
            statistics.median(one.first for one in found),
            statistics.median(one.again for one in found),
        )
        for name, found in measured.items()
    }
    ours = medians["imsvd"]
    return [
        Row(name, images, *median, median.first / ours.first, median.again / ours.again)
        for name, median in medians.items()
    ]


_COLUMNS = ("source", "s at first", "s again", "x ours at first", "x ours again")


def _cells(row: Row) -> list[str]:
    ratios = [f"{ratio:.2f}" for ratio in (row.times_ours_first, row.times_ours_again)]
    return [row.contender, f"{row.first:.3f}", f"{row.again:.3f}", *ratios]


def _table(rows: Sequence[Row]) -> TableContent:
    title = f"Opening a folder of {rows[0].images:,} images"
    return TableContent(title, _COLUMNS, [_cells(row) for row in rows])


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the results as `path` with suffix .json and as a Markdown table with suffix .md."""
    values = [row._asdict() for row in rows]
    write_tables(path, "Indexing images", environment(), values, [_table(rows)])
