"""The training runs that experiments consist of: a method, a length and what is changed in its recipe.

At full scale a variant is the recipe `imagenet` with the paper's value of the changed setting. At
CPU scale it is the recipe `cifar10-cpu` with a value in the same proportion, for fewer epochs.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

from imsvd.api import configure
from imsvd.grid.jobs import Job
from imsvd.recipes import phases_in_proportion, recipe

Scale = Literal["full", "cpu"]
SCALES: tuple[Scale, ...] = ("full", "cpu")
RECIPES: dict[Scale, str] = {"full": "imagenet", "cpu": "cifar10-cpu"}

CPU_EPOCHS = 4
"""Epochs at CPU scale that stand for the paper's 100."""
LONGEST_AT_CPU = 400
"""Epochs of the paper beyond which nothing is trained at CPU scale."""
WARMUP_SHARE = 0.1
"""The paper warms up for 10 epochs, however long it trains: a tenth of its 100."""

OUR_NAMES = {
    "SimCLR": "simclr",
    "MoCo v2": "moco_v2",
    "BYOL": "byol",
    "SwAV": "swav",
    "SimSiam": "simsiam",
    "DISSL": "dissl",
    "CorInfoMax": "corinfomax",
    "Barlow Twins": "barlow_twins",
    "VICReg": "vicreg",
    "IMSVD": "imsvd",
    "NPID": "npid",
    "LA": "la",
    "PCL": "pcl",
}
"""The methods as the paper and as we name them."""


class Setup(NamedTuple):
    """What a person decides about an experiment.

    Attributes:
        scale: full or cpu.
        data: the images to pretrain on, with labels and a test split.
        seeds: one run each.
        epochs: how many stand for the paper's 100; by default 100, or few at CPU scale.
        voc, coco, places: data of the transfer protocols; at CPU scale stand-ins by default.
        settings: overrides for every run, such as "compute.workers=0".
    """

    scale: Scale
    data: str = "imagenet"
    seeds: tuple[int, ...] = (0,)
    epochs: int | None = None
    voc: str | None = None
    coco: str | None = None
    places: str | None = None
    settings: tuple[str, ...] = ()

    @property
    def hundred(self) -> int:
        """Epochs that stand for the paper's 100."""
        return self.epochs or (100 if self.scale == "full" else CPU_EPOCHS)


class Run(NamedTuple):
    """One training run: its configuration, and what a command line says to get the same.

    `imsvd pretrain DATA --recipe RECIPE --method METHOD --set SETTING …` has the job's `config`.
    """

    job: Job
    recipe: str
    method: str
    settings: tuple[str, ...]


class Variant(NamedTuple):
    """One kind of training run, at both scales.

    Attributes:
        method: by our name.
        epochs: as the paper counts them.
        full: what differs from the recipe `imagenet`, as for `--set`.
        cpu: what differs from the recipe `cifar10-cpu`.
        cpu_epochs: the paper's epochs that are trained in proportion at CPU scale, if not `epochs`.
    """

    method: str
    epochs: int = 100
    full: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    cpu_epochs: int | None = None

    def run(self, setup: Setup, seed: int, label: str = "") -> Run:
        """Return the run with `seed`, and how a command line asks for the same.

        `label` tells people what is particular about it.
        """
        return _make_run(self, setup, seed, label)

    def settings(self, setup: Setup, seed: int) -> tuple[str, ...]:
        """Return all that differs from the recipe, as for `--set`."""
        return (
            f"seed={seed}",
            f"training.epochs={self._epochs(setup)}",
            *(self.full if setup.scale == "full" else self._cpu_settings(setup)),
            *setup.settings,
        )

    def _epochs(self, setup: Setup) -> int:
        epochs = self.epochs
        if setup.scale == "cpu":
            epochs = self.cpu_epochs or min(epochs, LONGEST_AT_CPU)
        return max(1, round(epochs * setup.hundred / 100))

    def _cpu_settings(self, setup: Setup) -> list[str]:
        """What differs from the recipe at CPU scale, beside the length and the seed."""
        published = recipe(RECIPES["cpu"], self.method)
        return [
            f"optimizer.warmup_epochs={WARMUP_SHARE * setup.hundred:g}",
            "training.knn_every=0",
            *phases_in_proportion(published, self._epochs(setup)),
            *self.cpu,
        ]


@cache
def _make_run(variant: Variant, setup: Setup, seed: int, label: str) -> Run:
    name, settings = RECIPES[setup.scale], variant.settings(setup, seed)
    config = configure(setup.data, recipe_name=name, method=variant.method, settings=settings)
    return Run(Job(config, label=label), name, variant.method, settings)
