"""Runs what is missing of a grid, each run in a process of its own, and can be killed at any moment.

OUT/runs/<job>/            a run folder, as `imsvd pretrain` writes it
OUT/runs/<job>/output.txt  what its process printed
OUT/runs/<job>/outcome.json   its result; a run that has one is not repeated
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from imsvd.errors import InputError, Interrupted
from imsvd.grid.display import GridDisplay
from imsvd.grid.estimate import Underway, remaining_seconds
from imsvd.grid.outcome import FAILURE, Outcome, data_fingerprint, read_outcome
from imsvd.grid.plan import Job, unique
from imsvd.runs import RunFolder
from imsvd.training.interruption import StopRequest

POLL_SECONDS = 0.2
LOCK_SECONDS = 60
"""How long to wait for the processes of a grid that was killed to notice and end."""


class Child(Protocol):
    """What the runner asks of the process of a run."""

    def poll(self) -> int | None:
        """Exit code, negative after a signal; None while it is at work."""

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is still at work."""

    def wait(self) -> int:
        """Exit code, when it has ended."""


@dataclass
class Standing:
    """How far a grid is."""

    jobs: list[Job]
    outcomes: dict[Job, Outcome] = field(default_factory=dict)
    failures: dict[Job, str] = field(default_factory=dict)
    """Why runs failed; they are tried again when the grid is run again."""

    @property
    def done(self) -> int:
        """How many runs are over, well or not."""
        return len(self.outcomes) + len(self.failures)

    @property
    def waiting(self) -> list[Job]:
        """The jobs that are not over."""
        return [job for job in self.jobs if job not in self.outcomes and job not in self.failures]


def run_grid(
    jobs: Sequence[Job],
    out: Path,
    console: Console,
    *,
    parallel: int = 1,
    report: Callable[[Standing], None],
) -> Standing:
    """Run the jobs that have no outcome yet, `parallel` at a time, and return how all of them ended.

    `report` is called with the standing at the beginning and whenever a run is over.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when the runs at work have saved.
    """
    if parallel < 1:
        raise InputError(f"parallel={parallel} runs at a time are too few; choose 1 or more.")
    with _locked(out, console) as lock:
        standing = _take_stock(unique(jobs), out)
        report(standing)
        with StopRequest() as stop, GridDisplay(console, len(standing.jobs)) as display:
            _Runner(standing, out, lock, display, parallel, report).run(stop)
    return standing


def run_folder(out: Path, job: Job) -> Path:
    """Return the folder of a job in the grid at `out`."""
    return out / "runs" / job.name


class _Runner:
    """Starts jobs, watches them and takes their results in."""

    def __init__(
        self,
        standing: Standing,
        out: Path,
        lock: int,
        display: GridDisplay,
        parallel: int,
        report: Callable[[Standing], None],
    ) -> None:
        self.standing, self.out, self.lock = standing, out, lock
        self.display, self.parallel, self.report = display, parallel, report
        self.at_work: dict[Job, Child] = {}
        self.read: dict[Job, tuple[int, list[dict[str, Any]]]] = {}
        """The epochs of the runs at work, and the size of the file when they were read."""

    def run(self, stop: StopRequest) -> None:
        """Go on until everything is over, or a signal asks to stop."""
        waiting = self.standing.waiting
        try:
            while (waiting or self.at_work) and not stop.signal_number:
                while waiting and len(self.at_work) < self.parallel:
                    self._start(waiting.pop(0))
                self._collect()
                time.sleep(POLL_SECONDS if self.at_work else 0)
            if stop.signal_number:
                self._stop_politely()
                self.display.say("Stopped and saved; run the same command to go on.")
                raise Interrupted(stop.signal_number)
        finally:
            # Only after a second signal or a defect; a killed run goes on from its checkpoint.
            for child in self.at_work.values():
                child.send_signal(signal.SIGKILL)
                child.wait()

    def _start(self, job: Job) -> None:
        folder = run_folder(self.out, job)
        try:
            RunFolder(folder).begin(job.config)
        except InputError as error:
            self._fail(job, str(error))
            return
        (folder / FAILURE).unlink(missing_ok=True)
        self.at_work[job] = start_child(job, folder, self.parallel, self.lock)
        self.display.begin(job, self.standing.done + len(self.at_work))

    def _collect(self) -> None:
        """Take in the results of the runs that have ended, and show the others."""
        for job, child in list(self.at_work.items()):
            code = child.poll()
            if code is not None:
                del self.at_work[job]
                self._conclude(job, code)
        records = {job: self._records(job) for job in self.at_work}
        self.display.update(self.standing.done, self._remaining(records), records)

    def _conclude(self, job: Job, code: int) -> None:
        folder = run_folder(self.out, job)
        outcome = read_outcome(folder, data_fingerprint(job.config.data.source))
        if code == 0 and outcome is not None:
            self.standing.outcomes[job] = outcome
            records = {other: self._records(other) for other in self.at_work}
            self.display.finish(job, outcome, self.standing.done, self._remaining(records))
            self.report(self.standing)
        else:
            self._fail(job, explain_failure(folder, code))

    def _fail(self, job: Job, sentence: str) -> None:
        self.standing.failures[job] = sentence
        self.display.fail(job, sentence, self.standing.done)
        self.report(self.standing)

    def _stop_politely(self) -> None:
        for child in self.at_work.values():
            child.send_signal(signal.SIGTERM)
        for job, child in list(self.at_work.items()):
            code = child.wait()
            del self.at_work[job]
            if code == 0:  # it was done before the signal reached it
                self._conclude(job, code)

    def _records(self, job: Job) -> list[dict[str, Any]]:
        run = RunFolder(run_folder(self.out, job))
        size = run.metrics_file.stat().st_size if run.metrics_file.exists() else 0
        if job not in self.read or self.read[job][0] != size:
            self.read[job] = size, run.metrics()
        return self.read[job][1]

    def _remaining(self, records: dict[Job, list[dict[str, Any]]]) -> float | None:
        waiting = [job for job in self.standing.waiting if job not in self.at_work]
        underway = [_underway(job, epochs) for job, epochs in records.items()]
        return remaining_seconds(waiting, underway, self.standing.outcomes, self.parallel)


def start_child(job: Job, folder: Path, parallel: int, lock: int) -> Child:
    """Start the process of a job, which holds the grid's lock until it ends."""
    command = [sys.executable, "-m", "imsvd.grid.job", str(folder), "--parallel", str(parallel)]
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command if job.trained else [*command, "--untrained"],
            stdin=subprocess.PIPE,  # its end tells the child that this process is gone
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": str(threads_per_run(parallel))},
            pass_fds=[lock],
            # Ctrl-C goes to the whole group of a terminal; children hear of it from us, once.
            start_new_session=True,
        )


def threads_per_run(parallel: int) -> int:
    """Return the share of the cores that each of `parallel` runs gets, within OMP_NUM_THREADS."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores // parallel, int(wanted) if wanted.isdigit() else cores))


def explain_failure(folder: Path, code: int) -> str:
    """Return why the process of the run in `folder` ended without a result."""
    try:
        return (folder / FAILURE).read_text()
    except OSError:
        pass
    if code < 0:
        return (
            f"its process was ended by {signal.Signals(-code).name}"
            f"{' (perhaps memory was short)' if code == -signal.SIGKILL else ''}; "
            "the same command goes on with it."
        )
    return f"its process ended with exit code {code}; {folder / 'output.txt'} has what it said."


def _take_stock(jobs: list[Job], out: Path) -> Standing:
    """Find the outcomes that earlier calls have left."""
    standing = Standing(jobs)
    fingerprints = {data: data_fingerprint(data) for data in {j.config.data.source for j in jobs}}
    for job in jobs:
        outcome = read_outcome(run_folder(out, job), fingerprints[job.config.data.source])
        if outcome is not None:
            standing.outcomes[job] = outcome
    return standing


def _underway(job: Job, records: list[dict[str, Any]]) -> Underway:
    if not records:
        return Underway(job, job.epochs, None)
    last = records[-1]
    return Underway(job, job.epochs - last["epoch"], last["total_seconds"] / last["epoch"])


@contextmanager
def _locked(out: Path, console: Console) -> Iterator[int]:
    """Keep every other grid out of `out`; the lock lasts until the last child has ended."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(
            f"{out} cannot be a folder for runs ({error.strerror}); give another --out."
        ) from error
    try:
        if not _try_lock(descriptor):
            console.print(
                f"Waiting for the processes at work in {out} to end.", markup=False, highlight=False
            )
            deadline = time.monotonic() + LOCK_SECONDS
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise InputError(
                        f"another grid is at work in {out}; wait for its end or give another --out."
                    )
                time.sleep(POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
