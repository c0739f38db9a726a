"""`imsvd bench index`: time to open a folder of many images, the first time and again.

The folder holds tiny files in a hundred classes; it is created for the benchmark and removed
afterwards. "First" means without a cached listing. The operating system may have the folder in its
own cache, as after unpacking; reading it from disk would add the same time to every contender.
"""

import io
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from torchvision.datasets import ImageFolder

from imsvd.bench.comparison import Benchmark, Case, Column, Contender, Numbers, Ratio, Row
from imsvd.datasets import ImageFolderSource
from imsvd.errors import InputError

CLASSES = 100
# The listing of a folder that changed a moment ago is not cached: further changes might go unseen.
_SETTLING_SECONDS = 2.5

CONTENDERS: dict[str, Contender[Callable[[Path], object]]] = {
    "imsvd": Contender("imsvd", ImageFolderSource),
    "torchvision ImageFolder": Contender("torchvision ImageFolder", ImageFolder),
}


@dataclass(frozen=True)
class IndexCase(Case):
    """What opens a folder of so many images."""

    images: int
    folder: str


class _Index(Benchmark[IndexCase]):
    case = IndexCase
    contenders = CONTENDERS
    heading = "Indexing images"
    first_column = "source"
    columns = (
        Column("s first", "first", ".3f"),
        Column("s again", "again", ".3f"),
        Column("first / ours", "times_ours_first"),
        Column("again / ours", "times_ours_again"),
    )
    ratios = (
        Ratio("times_ours_first", "first", {"contender": "imsvd"}),
        Ratio("times_ours_again", "again", {"contender": "imsvd"}),
    )
    hidden = ("folder",)

    def title(self, row: Row) -> str:
        return f"Opening a folder of {row['images']:,} images"

    def measure(self, case: IndexCase) -> Numbers:
        opened = CONTENDERS[case.contender].make
        with tempfile.TemporaryDirectory() as cache:
            os.environ["IMSVD_DATA"] = cache
            make_folder(Path(cache) / "small", CLASSES)
            opened(Path(cache) / "small")  # loads libraries
            return {key: _seconds(opened, Path(case.folder)) for key in ("first", "again")}


def _seconds(opened: Callable[[Path], object], folder: Path) -> float:
    before = time.perf_counter()
    opened(folder)
    return time.perf_counter() - before


def make_folder(folder: Path, images: int) -> None:
    """Write tiny JPEG files, spread evenly over the classes."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    classes = [folder / f"class-{number:02d}" for number in range(CLASSES)]
    for place in classes:
        place.mkdir(parents=True)
    for number in range(images):
        (classes[number % CLASSES] / f"{number:08d}.jpg").write_bytes(buffer.getvalue())


BENCHMARK = _Index()


def run(
    images: int = 20_000,
    repeats: int = 3,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Compare how long a folder of `images` takes to open."""
    if images < CLASSES:
        raise InputError(f"images = {images}: choose at least {CLASSES}, one per class.")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "images"
        make_folder(folder, images)
        time.sleep(_SETTLING_SECONDS)
        cases = [IndexCase(name, images, str(folder)) for name in CONTENDERS]
        return BENCHMARK.run(cases, repeats, console, output)
