"""Terminal display of a grid: a bar for all runs, a line per active run, a line per finished run.

Without a terminal, only the lines are printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from imsvd.grid.jobs import Job, Outcome
from imsvd.progress import clock

SCORES = {"knn_20": "kNN-20", "knn_200": "kNN-200", "linear_probe_top1": "linear probe"}


class GridDisplay:
    """Shows the progress of a grid on `console`."""

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
        """Show that run `number` has started."""
        self.tasks[job] = self.progress.add_task(job.title, total=job.epochs, note="starting")
        if not self.console.is_terminal:
            self.say(f"[{number}/{self.total}] {job.title}: started")

    def update(
        self,
        done: int,
        remaining: float | None,
        records: Mapping[Job, Sequence[Mapping[str, Any]]],
    ) -> None:
        """Update the overall bar and the line of every active run from its epoch records."""
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
        """Print the scores of a finished run."""
        seconds = outcome.training_seconds + outcome.evaluation_seconds
        scores = ", ".join(
            f"{SCORES[name]} {value:.1f}"
            for name, value in outcome.metrics.items()
            if name in SCORES
        )
        left = f"; about {clock(remaining)} left" if remaining else ""
        self._end(job, f"[{done}/{self.total}] {job.title}: {scores} ({clock(seconds)}){left}")

    def fail(self, job: Job, sentence: str, done: int) -> None:
        """Print why a run failed."""
        self._end(job, f"[{done}/{self.total}] {job.title} failed: {sentence}", style="red")

    def _end(self, job: Job, line: str, style: str | None = None) -> None:
        if job in self.tasks:
            self.progress.remove_task(self.tasks.pop(job))
        self.say(line, style)

    def say(self, line: str, style: str | None = None) -> None:
        """Print a line above the bars."""
        self.progress.console.print(escape(line), style=style, highlight=False, soft_wrap=True)


def _epoch_note(job: Job, records: Sequence[Mapping[str, Any]]) -> str:
    last = records[-1]
    if last["epoch"] >= job.epochs:
        return "evaluating"
    note = f"epoch {last['epoch']}/{job.epochs}, loss {last['loss']:.2f}"
    checks = [record["knn"] for record in records if record.get("knn")]
    if checks:
        note += f", kNN {next(iter(checks[-1].values())):.1f}"
    return f"{note}, {last['images_per_second']:.0f} img/s"


class ActiveRun(NamedTuple):
    """A run in progress; its speed is unknown before the first epoch ends."""

    job: Job
    epochs_left: float
    seconds_per_epoch: float | None


def remaining_seconds(
    waiting: Sequence[Job],
    active: Sequence[ActiveRun],
    finished: Mapping[Job, Outcome],
    parallel: int,
) -> float | None:
    """Return the estimated seconds until the grid is complete; None before any epoch has ended.

    A run is assumed to be as fast as other runs of its kind, or else as the average kind.
    """
    rates = _seconds_per_epoch(active, finished)
    active_jobs = [run.job for run in active]
    trained = {job.kind for job in [*finished, *active_jobs] if job.trained}
    known = [rate for kind, rate in rates.items() if kind in trained]
    if not known and any(job.trained for job in [*waiting, *active_jobs]):
        return None
    average = fmean(known) if known else 0

    def rate(job: Job) -> float:
        # Evaluating an untrained encoder is short, so it counts nothing until one was timed.
        return rates.get(job.kind, average if job.trained else 0)

    seconds = sum(rate(job) * job.epochs for job in waiting)
    seconds += sum(rate(run.job) * run.epochs_left for run in active)
    return seconds / parallel


def _seconds_per_epoch(
    active: Sequence[ActiveRun], finished: Mapping[Job, Outcome]
) -> dict[str, float]:
    """Seconds per epoch of every kind of job, from finished runs if any, else from active ones."""
    measured: dict[str, list[float]] = {}
    for job, outcome in finished.items():
        seconds = outcome.training_seconds + outcome.evaluation_seconds
        measured.setdefault(job.kind, []).append(seconds / job.epochs)
    current: dict[str, list[float]] = {}
    for run in active:
        if run.seconds_per_epoch is not None:
            current.setdefault(run.job.kind, []).append(run.seconds_per_epoch)
    return {kind: fmean(values) for kind, values in (current | measured).items()}
