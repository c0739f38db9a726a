"""`imsvd bench head`: an epoch of the head of `imsvd discretize` on synthetic cached features.

The head of 32 variables × 4 units trains as the command trains it: by the same loop, with views drawn
from a file, the held-out measure and the checkpoint at the end. The rows compare features held in
memory, of which there may be fewer, a file that the system does not hold in its page cache, and the
same file once more.
"""

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from torch import nn

from imsvd.bench.comparison import (
    Benchmark,
    Case,
    Column,
    Contender,
    Numbers,
    Row,
    peak,
    reset_peak,
)
from imsvd.discretizing.capacity import CodeSize
from imsvd.discretizing.directions import lasting_directions
from imsvd.discretizing.feature_file import Half, open_features, size_text
from imsvd.discretizing.head import HeadTraining, split_rows
from imsvd.discretizing.run import configure, set_length
from imsvd.encoder import Encoder, EncoderDescription
from imsvd.engine.hardware import launch
from imsvd.errors import InputError
from imsvd.networks import BackboneSettings
from imsvd.pretrained import Backbone
from imsvd.progress import progress_bar
from imsvd.runs import RunFolder

HEAD = CodeSize(32, 4)
"""Variables and units of the head."""
CHUNK = 1024
"""Images that are drawn and written at a time."""
NAME = "features.npy"
SPARE = 10**9
"""Bytes that must stay free for checkpoints and other programs."""


def _cold(path: Path) -> Half:
    """Map the file after the system was told to drop it from memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return open_features(path)


CONTENDERS: dict[str, Contender[Callable[[Path], Half]]] = {
    "memory": Contender("in memory", open_features),
    "cold": Contender("file, not in the page cache", _cold),
    "warm": Contender("file, once more", open_features),
}


@dataclass(frozen=True)
class HeadCase(Case):
    """An epoch over a file of features in `folder`."""

    folder: str
    images: int
    width: int
    views: int


class _Head(Benchmark[HeadCase]):
    case = HeadCase
    contenders = CONTENDERS
    heading = "An epoch of a head on cached features"
    first_column = "features"
    columns = (
        Column("images", "images", ",.0f"),
        Column("epoch s", "seconds", ",.1f"),
        Column("images/s", "images_per_second", ",.0f"),
        Column("peak MiB", "peak_mib", ",.0f"),
        Column("of which before training", "before_mib", ",.0f"),
        Column("time per image / in memory", "times_memory"),
    )
    largest = ("peak_mib", "before_mib")
    hidden = ("folder",)

    def title(self, row: Row) -> str:
        return f"{row['views']} views and the plain image, {row['width']:,} half floats each"

    def measure(self, case: HeadCase) -> Numbers:
        path = Path(case.folder) / NAME
        features = CONTENDERS[case.contender].make(path)[: case.images]
        if case.contender == "memory":
            features = np.array(features)
        with tempfile.TemporaryDirectory() as folder:
            training = head_training(features, Path(folder) / "run")
            before = reset_peak()
            began = time.perf_counter()
            training.fit(Console(quiet=True))
            seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "images_per_second": case.images / seconds,
            "milliseconds": 1000 * seconds / case.images,
            "peak_mib": peak() / 2**20,
            "before_mib": before / 2**20,
        }

    def derive(self, found: dict[HeadCase, Numbers]) -> dict[HeadCase, Numbers]:
        """Divide by the time per image in memory, which was measured on another number of images."""
        memory = next(value for case, value in found.items() if case.contender == "memory")
        for numbers in found.values():
            numbers["times_memory"] = numbers["milliseconds"] / memory["milliseconds"]
        return found


def head_training(features: Half, folder: Path) -> HeadTraining:
    """Return an epoch of a head on `features`, (images, views + 1, width), as `imsvd discretize` sets it up."""
    images, count, width = features.shape
    plain = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    description = EncoderDescription(
        method="timm", backbone=BackboneSettings(), size=32, mean=plain[0], std=plain[1]
    )
    encoder = Encoder(description, Backbone(nn.Identity(), width, (), 32, *plain))
    config = configure(encoder, encoder="synthetic", data="synthetic", views=count - 1, head=HEAD)
    config = set_length(config, images, 1, [])
    run = RunFolder(folder)
    run.begin(config)
    assert config.frozen is not None
    rows, _ = split_rows(images, config.frozen.held_out, config.seed)
    reader = lasting_directions(features, rows, config.frozen.directions, config.seed)
    fabric = launch(config.compute)
    return HeadTraining(config, run, fabric, encoder, "synthetic", features, reader)


def write_features(path: Path, shape: tuple[int, int, int], console: Console) -> None:
    """Write random features: views of an image are alike, images differ."""
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((CHUNK, *shape[1:]), np.float32)
    written = np.lib.format.open_memmap(path, "w+", "<f2", shape)
    with progress_bar(console) as bar, path.open("r+b") as file:
        task = bar.add_task("writing features", total=shape[0])
        file.seek(written.offset)
        del written  # pages written through a map would count as this process's memory
        for start in range(0, shape[0], CHUNK):
            count = min(CHUNK, shape[0] - start)
            image = generator.standard_normal((count, 1, shape[2]), np.float32)
            file.write((image + 0.3 * noise[:count]).astype(np.float16).tobytes())
            bar.update(task, completed=start + count)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _synthetic_file(
    shape: tuple[int, int, int], place: Path | None, console: Console
) -> Iterator[str]:
    """Give a temporary folder with a file of features; it is deleted at the end."""
    needed = 2 * math.prod(shape)
    with tempfile.TemporaryDirectory(dir=place, prefix="imsvd-bench-") as folder:
        free = shutil.disk_usage(folder).free
        if free < needed + SPARE:
            raise InputError(
                f"{size_text(needed)} of features do not fit in {Path(folder).parent}, which has "
                f"{size_text(free)} left; lower --images or name another --folder."
            )
        console.print(
            f"Features: {size_text(needed)} in {folder}, deleted at the end.",
            highlight=False,
            soft_wrap=True,
        )
        write_features(Path(folder) / NAME, shape, console)
        yield folder


BENCHMARK = _Head()


def run(
    images: int = 100_000,
    width: int = 1280,
    views: int = 2,
    repeats: int = 1,
    console: Console | None = None,
    output: Path | None = None,
    *,
    in_memory: int = 20_000,
    folder: Path | None = None,
) -> list[Row]:
    """Time an epoch over a file of `images`, and over `in_memory` of them held in memory."""
    if images < 1024 or width < 1 or views < 2 or in_memory < 1024:
        raise InputError(
            "an epoch needs at least 1,024 images, also in memory, 2 views and features of width 1."
        )
    console = console or Console()
    with _synthetic_file((images, views + 1, width), folder, console) as place:
        counts = {"memory": min(in_memory, images)}
        cases = [
            HeadCase(name, place, counts.get(name, images), width, views) for name in CONTENDERS
        ]
        return BENCHMARK.run(cases, repeats, console, output)
