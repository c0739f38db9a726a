"""The terminal view of a grid: one bar for all runs, a line for each at work, a line for each done.

Where there is no terminal, only the lines remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from imsvd.grid.outcome import Outcome
from imsvd.grid.plan import Job
from imsvd.progress import clock


class GridDisplay:
    """Shows a grid on `console`; a quiet console shows nothing."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
        )
        self.over_all = self.progress.add_task("all runs", total=total, note="")
        self.tasks: dict[Job, TaskID] = {}

    def __enter__(self) -> GridDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, job: Job, number: int) -> None:
        """Show that the `number`th run has been started."""
        self.tasks[job] = self.progress.add_task(job.title, total=job.epochs, note="starting")
        if not self.console.is_terminal:
            self.say(f"{self._count(number)} {job.title}: begins")

    def update(
        self,
        done: int,
        remaining: float | None,
        records: Mapping[Job, Sequence[Mapping[str, Any]]],
    ) -> None:
        """Show how far the grid is, and the last epoch of every run at work."""
        left = "" if remaining is None else f", about {clock(remaining)} left"
        self.progress.update(
            self.over_all, completed=done, note=f"{done} of {self.total} runs{left}"
        )
        for job, epochs in records.items():
            if epochs:
                self.progress.update(
                    self.tasks[job], completed=epochs[-1]["epoch"], note=_epoch_note(job, epochs)
                )

    def finish(self, job: Job, outcome: Outcome, done: int, remaining: float | None) -> None:
        """Print the line of a run that is over."""
        seconds = outcome.training_seconds + outcome.evaluation_seconds
        names = {"knn_20": "kNN-20", "knn_200": "kNN-200", "linear_probe_top1": "linear probe"}
        scores = ", ".join(
            f"{names[name]} {value:.1f}" for name, value in outcome.metrics.items() if name in names
        )
        left = f"; about {clock(remaining)} left" if remaining else ""
        self._end(job, f"{self._count(done)} {job.title}: {scores} ({clock(seconds)}){left}")

    def fail(self, job: Job, sentence: str, done: int) -> None:
        """Print the line of a run that has failed."""
        line = f"{self._count(done)} {job.title} failed: {sentence}"
        self._end(job, line, style="red")

    def _end(self, job: Job, line: str, style: str | None = None) -> None:
        if job in self.tasks:
            self.progress.remove_task(self.tasks.pop(job))
        self.say(line, style)

    def say(self, line: str, style: str | None = None) -> None:
        """Print a line above the bars."""
        self.progress.console.print(escape(line), style=style, highlight=False, soft_wrap=True)

    def _count(self, number: int) -> str:
        return f"[{number}/{self.total}]"


def _epoch_note(job: Job, records: Sequence[Mapping[str, Any]]) -> str:
    last = records[-1]
    if last["epoch"] >= job.epochs:
        return "evaluating"
    note = f"epoch {last['epoch']}/{job.epochs}, loss {last['loss']:.2f}"
    checks = [record["knn"] for record in records if record.get("knn")]
    if checks:
        note += f", kNN {next(iter(checks[-1].values())):.1f}"
    return f"{note}, {last['images_per_second']:.0f} img/s"
