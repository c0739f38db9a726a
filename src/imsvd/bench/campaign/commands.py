"""The commands that have bad days, in their smallest form, and the images and encoder they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

IMAGES, TEST_IMAGES, SIDE = 64, 24, 32
STEPS = 4
"""Training steps of an epoch."""

_NETWORK = (
    # Widths below 8 make PyTorch's channels-last convolutions corrupt memory on some CPUs.
    "backbone.options={layers: [1, 1, 1, 1], channels: [8, 8, 8, 8], stem_type: deep, stem_width: 8}",
    "optimizer.warmup_epochs=1",
    f"training.batch_size={IMAGES // STEPS}",
    "training.knn_every=1",
    "training.knn_samples=100",
)
_IMSVD = ("method.projector=[16, 16]", "method.units=4")
_COMPUTE = (
    "compute.accelerator=cpu",
    "compute.workers=0",
    "compute.checkpoint_minutes=1e-9",  # a checkpoint after every step
)
_COCO = (
    "batch_size=2",
    "sizes=[28, 32]",
    "anchor_sizes=[12, 20]",
    "candidates=[50, 50]",
    "proposals=[20, 20]",
    "regions_per_image=8",
    "mask_channels=8",
    "precise_batches=2",
)


class World(NamedTuple):
    """Where the campaign keeps what commands read."""

    folder: Path

    @property
    def images(self) -> Path:
        """Labeled images of 32 pixels."""
        return self.folder / "images" / "alike"

    @property
    def mixed(self) -> Path:
        """Images of several sizes, which are read again in every epoch."""
        return self.folder / "images" / "mixed"

    @property
    def scenes(self) -> Path:
        """Scenes in COCO's layout."""
        return self.folder / "scenes"

    @property
    def run(self) -> Path:
        """A trained encoder."""
        return self.folder / "run"

    @property
    def work(self) -> Path:
        """Where commands write; every try has it for itself, so that all see the same paths."""
        return self.folder / "work"


class Command(NamedTuple):
    """A command under test.

    Attributes:
        words: its arguments, given the world; it writes below `World.work`.
        reads_run: whether it needs a trained run, which it may write to.
        ranks: processes of it.
    """

    words: Callable[[World], Sequence[str]]
    reads_run: bool = False
    ranks: int = 1


def _sets(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def _pretrain_on(images: Path, world: World, *settings: str) -> list[str]:
    sets = _sets(*_NETWORK, *_IMSVD, *_COMPUTE, "training.epochs=3", *settings)
    out = str(world.work / "run")
    return ["pretrain", str(images), "--recipe", "shapes", "--out", out, *sets]


def _pretrain(world: World) -> list[str]:
    # Stochastic depth draws from the global generator, whose state must survive as well.
    return _pretrain_on(world.images, world, "backbone.options.drop_path_rate=0.3")


def _pretrain_with_readers(world: World) -> list[str]:
    return _pretrain_on(world.mixed, world, "compute.workers=1", "training.knn_every=0")


def _pretrain_alike(world: World) -> list[str]:
    """Pretrain without BatchNorm, which CPU processes do not share: any number of ranks is alike."""
    norms = (
        "backbone.options.norm_layer=layernorm2d",
        "method.projector=[16]",
        "method.standardize=false",
    )
    return _pretrain_on(world.images, world, *norms, "compute.timeout_minutes=0.1")


def _discretize(world: World) -> list[str]:
    head = ("--bits", "8", "--units", "4", "--steps", "12", "--views", "2")
    settings = _sets("method.projector=[16, 16]", "training.batch_size=16", *_COMPUTE)
    out = str(world.work / "run")
    return ["discretize", str(world.run), str(world.images), "--out", out, *head, *settings]


def _linear(world: World) -> list[str]:
    settings = _sets("batch_size=16", *_COMPUTE)
    run = str(world.work / "run")
    return ["evaluate", "linear", run, str(world.images), "--epochs", "3", *settings]


def _coco(world: World) -> list[str]:
    settings = _sets(*_COCO, *_COMPUTE)
    run = str(world.work / "run")
    size = ("--scale", "small", "--iterations", "6")
    return ["evaluate", "coco", run, str(world.scenes), *size, *settings]


def _explain(world: World) -> list[str]:
    parts = "joint,galleries"
    return ["explain", str(world.work / "run"), str(world.images), "--only", parts]


def _compare(world: World) -> list[str]:
    settings = _sets(*_NETWORK, *_COMPUTE, "code=null", "optimizer.warmup_epochs=0")
    out = str(world.work / "comparison")
    plan = ("--methods", "imsvd,vicreg", "--seeds", "1", "--lr-factors", "1", "--epochs", "1")
    return ["compare", str(world.images), "--recipe", "shapes", "--out", out, *plan, *settings]


def _index(world: World) -> list[str]:
    return ["index", str(world.run), str(world.images), "--out", str(world.work / "a.index")]


COMMANDS = {
    "pretrain": Command(_pretrain),
    "discretize": Command(_discretize),
    "linear": Command(_linear, reads_run=True),
    "coco": Command(_coco, reads_run=True),
    "explain": Command(_explain, reads_run=True),
    "compare": Command(_compare),
    "index": Command(_index),
    "pretrain, readers": Command(_pretrain_with_readers),
}
COMMANDS |= {
    f"{name}, 2 ranks": COMMANDS[name]._replace(ranks=2)
    for name in ("pretrain", "discretize", "linear", "coco")
}


HOSTS = {f"pretrain, {ranks} hosts": Command(_pretrain_alike, ranks=ranks) for ranks in (1, 2, 4)}
"""Trainings whose loss does not depend on the number of ranks."""


def write_images(folder: Path, count: int, seed: int, tallest: int = SIDE) -> None:
    """Write images of two classes, square unless `tallest` is larger than their side."""
    random = np.random.default_rng(seed)
    for number in range(count):
        label = number % 2
        base = np.array([[200, 60, 40], [40, 90, 210]][label])
        shape = (SIDE + number % (tallest - SIDE + 1), SIDE, 3)
        pixels = np.clip(base + random.normal(0, 40, shape), 0, 255).astype(np.uint8)
        row = random.integers(0, SIDE // 2)
        pixels[row : row + 8, :, :] = 255 - pixels[row : row + 8, :, :]
        path = folder / f"class{label}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
