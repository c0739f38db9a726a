"""The terminal view of pretraining: a progress bar per epoch and a table with one line per epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.text import Text

from imsvd.progress import clock, progress_bar

LABELS = {
    "spread": "sprd",
    "effective_rank": "rank",
    "knn_20": "kNN",
    "images_per_second": "img/s",
}
"""Short column titles of what every method reports; a method adds those of its own terms."""
NARROW = ("spread", "effective_rank", "knn_20")
"""Columns of at most four characters, as shares are."""


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{(task.speed or 0) * task.fields['batch_size']:,.0f} img/s")


class TrainingDisplay:
    """Shows a run on `console`; a quiet console shows nothing. `knn` leaves room for kNN checks."""

    def __init__(
        self,
        console: Console,
        epochs: int,
        batch_size: int,
        labels: Mapping[str, str],
        *,
        knn: bool = True,
    ) -> None:
        self.knn = knn
        self.console, self.epochs, self.batch_size = console, epochs, batch_size
        self.labels = {**LABELS, **labels}
        self.progress = progress_bar(console, _Speed())
        self.task = self.progress.add_task("", total=None, batch_size=batch_size)
        self.columns: list[str] = []
        self.epoch_seconds: list[float] = []

    def __enter__(self) -> TrainingDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.progress.console.print(text, highlight=False)

    def begin_epoch(self, epoch: int, done: int, steps: int) -> None:
        """Start the bar of `epoch`, counted from 1, of which `done` steps are complete."""
        self.progress.reset(
            self.task,
            description=f"epoch {epoch}/{self.epochs}",
            total=steps,
            completed=done,
            batch_size=self.batch_size,
        )

    def step(self) -> None:
        """Advance by one step."""
        self.progress.advance(self.task)

    def end_epoch(
        self, record: Mapping[str, Any], bounds: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Print the epoch's line; print the table's head and bounds first if there are new terms."""
        values = _flat_values(record)
        if not values.keys() <= set(self.columns):
            self._print_head(values, bounds)
        self.epoch_seconds.append(record["seconds"])
        average = sum(self.epoch_seconds) / len(self.epoch_seconds)
        remaining = average * (self.epochs - record["epoch"])
        cells = [_cell(name, values.get(name)) for name in self.columns]
        self.say(self._line(f"{record['epoch']}/{self.epochs}", [*cells, clock(remaining)]))

    def _print_head(
        self, values: Mapping[str, float], bounds: Mapping[str, Mapping[str, float]]
    ) -> None:
        self.columns = list(values)
        if self.knn and "knn_20" not in self.columns:
            self.columns.insert(-1, "knn_20")
        titles = [self.labels.get(name, name) for name in self.columns]
        self.say(f"[bold]{self._line('epoch', [*titles, 'ETA'])}[/bold]")
        for name, row in bounds.items():
            cells = [
                _cell(column, row.get("total" if column == "loss" else column))
                for column in self.columns
            ]
            self.say(f"[dim]{self._line(self.labels.get(name, name), [*cells, ''])}[/dim]")

    def _line(self, label: str, cells: Sequence[str]) -> str:
        """Format a row; the loss, three terms, and the columns of a code fit into 80 characters."""
        first, *middle, last = cells
        row = "".join(
            f"{cell:>{_width(name, self.labels)}}"
            for name, cell in zip(self.columns[1:], middle, strict=True)
        )
        return f"{label:>9}{first:>8}{row}{last:>8}"


def _flat_values(record: Mapping[str, Any]) -> dict[str, float]:
    values: dict[str, float] = {"loss": record["loss"], **record["terms"], **record["health"]}
    values.update(
        {name: value for name, value in record.get("knn", {}).items() if name == "knn_20"}
    )
    values["images_per_second"] = record["images_per_second"]
    return values


def _width(name: str, labels: Mapping[str, str]) -> int:
    narrow = name.startswith("share_") or name in NARROW
    return max(5 if narrow else 6, len(labels.get(name, name)) + 1)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.startswith("share_"):
        return f"{100 * value:.0f}%"
    if name in ("dead_units", "images_per_second", "effective_rank"):
        return f"{value:.0f}"
    if name == "knn_20":
        return "100" if value >= 99.95 else f"{value:.1f}"
    return f"{value:z.2f}"
