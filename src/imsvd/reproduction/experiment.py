"""Experiments: the values of a table or figure of the paper, and the runs that reproduce them.

Every experiment exists at two budgets. At the full budget a run is the recipe `imagenet` with the
paper's value of the varied setting. At the CPU budget it is the recipe `cifar10-cpu` with a value in
the same proportion, the published form of the method, and fewer epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from imsvd.errors import InputError
from imsvd.grid.jobs import Job, check_seeds, check_settings
from imsvd.paper_numbers import paper_tables
from imsvd.pretraining.pretrain import configure
from imsvd.recipes import phases_in_proportion, recipe

Budget = Literal["full", "cpu"]
RECIPES: dict[Budget, str] = {"full": "imagenet", "cpu": "cifar10-cpu"}
CPU_EPOCHS = 4
"""Epochs at the CPU budget for every 100 of the paper."""
LONGEST_AT_CPU = 400
"""The longest of the paper's trainings that is reproduced at the CPU budget, in its epochs."""
WARMUP_SHARE = 0.1
"""The paper warms up for 10 epochs at every length: a tenth of 100."""

VARIED = {"seed": "--seeds", "data.source": "--data", "training.epochs": "--epochs"}
"""Settings that vary between runs, and the options that control them."""

ValueSource = Literal["grid", "linear", "knn", "voc07", "places205", "coco", "training", "explain"]
"""Where a value comes from.

grid: measured for every run at the CPU budget. training: time and memory recorded during training.
explain: figures. All others are protocols of `imsvd evaluate`.
"""
Direction = Literal["rows", "columns"]
"""What the paper compares: the rows of each column, or the columns of each row."""


class Setup(NamedTuple):
    """The choices that apply to a whole experiment.

    Attributes:
        budget: full or cpu.
        data: labeled images with a training and a test split.
        seeds: one run per seed.
        epochs: epochs for every 100 of the paper; by default 100, or 4 at the CPU budget.
        voc, coco, places: data of the transfer protocols; stand-ins at the CPU budget by default.
        settings: overrides for every run, such as "compute.workers=0".
    """

    budget: Budget
    data: str = "imagenet"
    seeds: tuple[int, ...] = (0,)
    epochs: int | None = None
    voc: str | None = None
    coco: str | None = None
    places: str | None = None
    settings: tuple[str, ...] = ()

    @property
    def epochs_per_100(self) -> int:
        """Epochs for every 100 of the paper."""
        return self.epochs or (100 if self.budget == "full" else CPU_EPOCHS)


def check_setup(setup: Setup) -> None:
    """Reject invalid seeds, epochs and overrides."""
    check_seeds(setup.seeds)
    if setup.epochs is not None and setup.epochs < 1:
        raise InputError(f"--epochs {setup.epochs} is too few; use 1 or more.")
    check_settings(setup.settings, VARIED)


class PlannedRun(NamedTuple):
    """A training run, and what its configuration changes in the recipe of its budget and method."""

    job: Job
    settings: tuple[str, ...]

    @property
    def method(self) -> str:
        """Our name of the method."""
        return self.job.config.method.name


class PaperTraining(NamedTuple):
    """A training of the paper, at both budgets.

    Attributes:
        method: our name of the method.
        epochs: the paper's number of epochs.
        full: overrides of the recipe `imagenet`.
        cpu: overrides of the recipe `cifar10-cpu`.
        cpu_epochs: the paper's epochs to scale down at the CPU budget; by default `epochs`.
    """

    method: str
    epochs: int = 100
    full: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    cpu_epochs: int | None = None

    def run(self, setup: Setup, seed: int, label: str = "") -> PlannedRun:
        """Return the run for `seed`; `label` describes it to people."""
        return _plan_run(self, setup, seed, label)

    def settings(self, setup: Setup, seed: int) -> tuple[str, ...]:
        """Return everything that differs from the recipe."""
        longest = self.epochs
        if setup.budget == "cpu":
            longest = self.cpu_epochs or min(self.epochs, LONGEST_AT_CPU)
        epochs = max(1, round(longest * setup.epochs_per_100 / 100))
        changes = list(self.full)
        if setup.budget == "cpu":
            published = recipe(RECIPES["cpu"], self.method)
            changes = [
                *published.method.published_form,
                f"optimizer.warmup_epochs={WARMUP_SHARE * setup.epochs_per_100:g}",
                "training.knn_every=0",
                *phases_in_proportion(published, epochs),
                *self.cpu,
            ]
        return (f"seed={seed}", f"training.epochs={epochs}", *changes, *setup.settings)


@cache
def _plan_run(training: PaperTraining, setup: Setup, seed: int, label: str) -> PlannedRun:
    name, settings = RECIPES[setup.budget], training.settings(setup, seed)
    config = configure(setup.data, recipe_name=name, method=training.method, settings=settings)
    return PlannedRun(Job(config, label=label), settings)


class Measure(NamedTuple):
    """A measured quantity: the protocol and metric it comes from, and its title."""

    protocol: ValueSource
    metric: str
    title: str
    lower_is_better: bool = False


Quantity = Mapping[Budget, Measure]
"""What is measured at each budget for one quantity of the paper."""

TOP1: Quantity = {
    "full": Measure("linear", "linear_top1", "linear top-1, %"),
    "cpu": Measure("grid", "linear_probe_top1", "linear probe top-1, %"),
}
TOP5: Quantity = {
    "full": Measure("linear", "linear_top5", "linear top-5, %"),
    "cpu": Measure("grid", "linear_probe_top5", "linear probe top-5, %"),
}
TIME: Quantity = {
    "full": Measure("training", "hours_per_100_epochs", "hours per 100 epochs", True),
    "cpu": Measure("grid", "seconds_per_epoch", "seconds per epoch", True),
}
MEMORY: Quantity = {
    "full": Measure("training", "peak_gigabytes", "peak memory per GPU, GB", True),
    "cpu": Measure("grid", "peak_mebibytes", "peak memory, MiB", True),
}
FIGURE = Measure("explain", "files", "figures")


class PaperValue(NamedTuple):
    """One value of the paper and how to reproduce it.

    Attributes:
        row, column: position in our table.
        quantity: what is measured.
        training: the training to measure; None for a `published` backbone.
        place: table, row and column in paper_numbers.yaml; None for a figure.
        cpu_setting: short form of the varied setting at the CPU budget, such as "batch 64";
            "{epochs}" becomes the length of the run.
        budgets: the budgets at which it is reproduced.
        published: a published backbone to measure instead of a training.
    """

    row: str
    column: str
    quantity: Quantity
    training: PaperTraining | None
    place: tuple[str, str, str] | None = None
    cpu_setting: str = ""
    budgets: tuple[Budget, ...] = ("full", "cpu")
    published: str = ""


class Cell(NamedTuple):
    """A value of the paper at one budget, with one run per seed."""

    row: str
    column: str
    measure: Measure
    runs: tuple[PlannedRun, ...]
    paper: float | None
    setting: str
    """The varied setting, where it is not the paper's."""
    published: str
    paper_title: str
    """What the paper measured, such as "linear top-1, %"."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The runs as jobs of a grid."""
        return tuple(run.job for run in self.runs)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: name on the command line.
        source: place in the paper.
        shows: the paper's finding, in one sentence.
        values: the numbers or the figure.
        compares: directions in which the paper compares the values.
        axis: meaning of the columns.
        notes: remarks at each budget, a sentence or two each.
        part: the part of `imsvd explain` that draws the figure.
    """

    name: str
    source: str
    shows: str
    values: tuple[PaperValue, ...]
    compares: tuple[Direction, ...] = ()
    axis: str = ""
    notes: Mapping[Budget, Sequence[str]] = field(default_factory=dict)
    part: str = ""

    def cells(self, setup: Setup) -> list[Cell]:
        """Return the values at the budget of `setup`, with complete configurations."""
        return [self._cell(value, setup) for value in self.values if setup.budget in value.budgets]

    def _cell(self, value: PaperValue, setup: Setup) -> Cell:
        runs: tuple[PlannedRun, ...] = ()
        if value.training is not None:
            # A figure shows one encoder, so it needs one seed only.
            seeds = setup.seeds[:1] if self.part else setup.seeds
            label = f"{self.name} {value.column}"
            runs = tuple(value.training.run(setup, seed, label) for seed in seeds)
        paper = None
        if value.place:
            table, row, column = value.place
            paper = paper_tables()[table].rows[row][column]
        setting = ""
        if setup.budget == "cpu" and value.cpu_setting:
            setting = value.cpu_setting.format(epochs=runs[0].job.epochs)
        return Cell(
            value.row,
            value.column,
            value.quantity[setup.budget],
            runs,
            paper,
            setting,
            value.published,
            value.quantity["full"].title,
        )

    def runs(self, setup: Setup) -> list[PlannedRun]:
        """Return all training runs without duplicates, seed by seed."""
        cells = self.cells(setup)
        seeds = max((len(cell.runs) for cell in cells), default=0)
        runs = (cell.runs[seed] for seed in range(seeds) for cell in cells if cell.runs)
        return list({run.job: run for run in runs}.values())

    def jobs(self, setup: Setup) -> list[Job]:
        """Return the runs as jobs of a grid."""
        return [run.job for run in self.runs(setup)]
