"""How long a grid will still take, told by the runs that are over and the epochs of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from imsvd.grid.outcome import Outcome
from imsvd.grid.plan import Job


class Underway(NamedTuple):
    """A run at work, as far as its own epochs tell."""

    job: Job
    epochs_left: float
    seconds_per_epoch: float | None


def remaining_seconds(
    waiting: Sequence[Job],
    underway: Sequence[Underway],
    finished: Mapping[Job, Outcome],
    parallel: int,
) -> float | None:
    """Return the seconds until a grid is over; None while nothing tells how long an epoch takes.

    A run is taken to need as long per epoch as others of its kind, or else as all kinds on average.
    """
    rates = _seconds_per_epoch(underway, finished)
    at_work = [run.job for run in underway]
    trained = {job.kind for job in [*finished, *at_work] if job.trained}
    known = [rate for kind, rate in rates.items() if kind in trained]
    if not known and any(job.trained for job in [*waiting, *at_work]):
        return None
    average = fmean(known) if known else 0

    def rate(job: Job) -> float:
        # Evaluation without training is short: until one has been seen, it is left out.
        return rates.get(job.kind, average if job.trained else 0)

    seconds = sum(rate(job) * job.epochs for job in waiting)
    seconds += sum(rate(run.job) * run.epochs_left for run in underway)
    return seconds / parallel


def _seconds_per_epoch(
    underway: Sequence[Underway], finished: Mapping[Job, Outcome]
) -> dict[str, float]:
    """Seconds per epoch of every kind of job: of its finished runs, or else of those at work."""
    measured: dict[str, list[float]] = {}
    for job, outcome in finished.items():
        seconds = outcome.training_seconds + outcome.evaluation_seconds
        measured.setdefault(job.kind, []).append(seconds / job.epochs)
    guessed: dict[str, list[float]] = {}
    for run in underway:
        if run.seconds_per_epoch is not None:
            guessed.setdefault(run.job.kind, []).append(run.seconds_per_epoch)
    return {kind: fmean(values) for kind, values in (guessed | measured).items()}
