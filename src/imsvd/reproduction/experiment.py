"""What an experiment is: entries of a table, and the cells with complete configurations they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from imsvd.grid.jobs import Job
from imsvd.paper_numbers import paper_tables
from imsvd.reproduction.variants import Run, Scale, Setup, Variant

Protocol = Literal["grid", "linear", "knn", "voc07", "places205", "coco", "training", "explain"]
"""Where a value comes from.

grid: what `imsvd.grid.worker` measures of every run at CPU scale, training included. training: the
time and memory of training at full scale. explain: figures. Else `imsvd evaluate PROTOCOL`.
"""

Direction = Literal["rows", "columns"]
"""What the paper compares: the rows within each column, or the columns within each row."""


class Measure(NamedTuple):
    """What is measured of a run, and how it is shown."""

    protocol: Protocol
    metric: str
    """Its name among the results of the protocol."""
    title: str
    lower_is_better: bool = False


Quantity = Mapping[Scale, Measure]
"""What the paper measures, and what stands for it at each scale."""

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
DRAWN: Quantity = {
    "full": Measure("explain", "files", "figures"),
    "cpu": Measure("explain", "files", "figures"),
}


class Place(NamedTuple):
    """Where a number stands in `paper_numbers.yaml`."""

    table: str
    row: str
    column: str

    @property
    def value(self) -> float:
        """The number."""
        return paper_tables()[self.table].rows[self.row][self.column]


class Entry(NamedTuple):
    """One number of an experiment.

    Attributes:
        row, column: where it stands in our table, named as in the paper.
        quantity: what is measured.
        variant: the run it is measured of; None for `pretrained`.
        place: the paper's number, if there is one.
        cpu_setting: the changed setting at CPU scale in a word or two, such as "batch 64";
            "{epochs}" in it becomes the length of the run.
        scales: the scales at which it is measured.
        pretrained: a published backbone that is measured in place of a run.
    """

    row: str
    column: str
    quantity: Quantity
    variant: Variant | None
    place: Place | None = None
    cpu_setting: str = ""
    scales: tuple[Scale, ...] = ("full", "cpu")
    pretrained: str = ""


class Cell(NamedTuple):
    """An entry at one scale: complete configurations, one per seed, and what is measured of them."""

    row: str
    column: str
    measure: Measure
    runs: tuple[Run, ...]
    paper: float | None = None
    setting: str = ""
    """The changed setting where it is not the paper's, such as "batch 64"."""
    pretrained: str = ""
    """A backbone such as "torchvision:resnet50" that is measured in place of runs."""
    paper_title: str = ""
    """What the paper's number is of, such as "linear top-1, %"."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The runs as jobs of a grid."""
        return tuple(run.job for run in self.runs)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: what it is called on the command line.
        source: where it stands in the paper.
        shows: what the paper shows by it, in a sentence.
        entries: its numbers.
        compares: the comparisons that the paper makes in it.
        notes: what is to be known about it at each scale, a sentence or two each.
        parts: of `imsvd explain`, for a figure.
        axis: what the columns are.
    """

    name: str
    source: str
    shows: str
    entries: tuple[Entry, ...]
    compares: tuple[Direction, ...] = ()
    notes: Mapping[Scale, Sequence[str]] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    axis: str = ""

    def cells(self, setup: Setup) -> list[Cell]:
        """Return what is measured at the scale of `setup`, with complete configurations."""
        return [self._cell(entry, setup) for entry in self.entries if setup.scale in entry.scales]

    def _cell(self, entry: Entry, setup: Setup) -> Cell:
        runs = self._runs(entry, setup)
        epochs = runs[0].job.epochs if runs else 0
        return Cell(
            entry.row,
            entry.column,
            entry.quantity[setup.scale],
            runs,
            entry.place.value if entry.place else None,
            entry.cpu_setting.format(epochs=epochs) if setup.scale == "cpu" else "",
            entry.pretrained,
            entry.quantity["full"].title,
        )

    def _runs(self, entry: Entry, setup: Setup) -> tuple[Run, ...]:
        if entry.variant is None:
            return ()
        # A figure shows one encoder; more seeds would only be drawn over it.
        seeds = setup.seeds[:1] if self.parts else setup.seeds
        label = f"{self.name} {entry.column}"
        return tuple(entry.variant.run(setup, seed, label) for seed in seeds)

    def runs(self, setup: Setup) -> list[Run]:
        """Return the training runs without repetitions, all of one seed before the next."""
        return list({run.job: run for run in _seed_by_seed(self.cells(setup))}.values())

    def jobs(self, setup: Setup) -> list[Job]:
        """Return the runs as jobs of a grid."""
        return [run.job for run in self.runs(setup)]


def _seed_by_seed(cells: Sequence[Cell]) -> list[Run]:
    seeds = max((len(cell.runs) for cell in cells), default=0)
    return [cell.runs[seed] for seed in range(seeds) for cell in cells if cell.runs]
