"""Runs the incomplete jobs of a grid, each in its own process; safe to kill at any time.

OUT/runs/<job>/               a run folder, as `imsvd pretrain` writes it
OUT/runs/<job>/output.txt     output of its process
OUT/runs/<job>/outcome.json   its result; a run with an outcome is not repeated
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

import torch
from rich.console import Console

from imsvd.engine.stopping import StopRequest
from imsvd.errors import InputError, Interrupted
from imsvd.files import remove_leftovers
from imsvd.grid.display import ActiveRun, GridDisplay, remaining_seconds
from imsvd.grid.jobs import (
    FAILURE,
    Job,
    Outcome,
    data_fingerprint,
    read_outcome,
    run_folder,
    unique,
)
from imsvd.processors import usable_processors
from imsvd.runs import RunFolder

POLL_SECONDS = 0.2
LOCK_SECONDS = 60
"""Time for the processes of a killed grid to stop before a new one gives up."""


class Child(Protocol):
    """The part of `subprocess.Popen` that the runner uses."""

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while running."""

    def send_signal(self, number: int) -> None:
        """Send a signal if the process is still running."""

    def wait(self) -> int:
        """Wait for the end and return the exit code."""


@dataclass
class GridState:
    """Jobs, outcomes and failures so far."""

    jobs: list[Job]
    outcomes: dict[Job, Outcome] = field(default_factory=dict)
    failures: dict[Job, str] = field(default_factory=dict)
    """Reasons of failed runs, which are retried when the grid runs again."""

    @property
    def done(self) -> int:
        """Number of runs that succeeded or failed."""
        return len(self.outcomes) + len(self.failures)

    @property
    def waiting(self) -> list[Job]:
        """Jobs without outcome or failure."""
        return [job for job in self.jobs if job not in self.outcomes and job not in self.failures]


def run_grid(
    jobs: Sequence[Job],
    out: Path,
    console: Console,
    *,
    parallel: int = 1,
    report: Callable[[GridState], None],
) -> GridState:
    """Run all jobs without an outcome, `parallel` at a time, and return the final state.

    `report` is called with the state at the start and after every run.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, once all active runs have saved.
    """
    if parallel < 1:
        raise InputError(f"parallel={parallel} is too small; choose 1 or more.")
    with _locked(out, console) as lock:
        remove_leftovers(out)
        state = _read_state(unique(jobs), out)
        report(state)
        with StopRequest() as stop, GridDisplay(console, len(state.jobs)) as display:
            _Runner(state, out, lock, display, parallel, report).run(stop)
    return state


class _Runner:
    """Starts jobs, watches them and collects their results."""

    def __init__(
        self,
        state: GridState,
        out: Path,
        lock: int,
        display: GridDisplay,
        parallel: int,
        report: Callable[[GridState], None],
    ) -> None:
        self.state, self.out, self.lock = state, out, lock
        self.display, self.parallel, self.report = display, parallel, report
        self.active: dict[Job, Child] = {}
        self.places: dict[Job, int] = {}
        """Number of each active run below `parallel`, which decides its GPUs."""
        self.read: dict[Job, tuple[int, list[dict[str, Any]]]] = {}
        """Epoch records of active runs, with the file size at which they were read."""

    def run(self, stop: StopRequest) -> None:
        """Run until all jobs are done or a signal arrives."""
        waiting = self.state.waiting
        try:
            while (waiting or self.active) and not stop.signal_number:
                while waiting and len(self.active) < self.parallel:
                    self._start(waiting.pop(0))
                self._collect()
                time.sleep(POLL_SECONDS if self.active else 0)
            if stop.signal_number:
                self._stop_politely()
                self.display.say("Stopped and saved; run the same command to resume.")
                raise Interrupted(stop.signal_number)
        finally:
            # Reached only after a second signal or a bug; killed runs resume from their checkpoint.
            for child in self.active.values():
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
        taken = set(self.places.values())
        place = next(number for number in range(self.parallel) if number not in taken)
        self.places[job] = place
        self.active[job] = start_child(job, folder, self.parallel, self.lock, place)
        self.display.begin(job, self.state.done + len(self.active))

    def _collect(self) -> None:
        """Collect the results of ended runs and update the display of the others."""
        for job, child in list(self.active.items()):
            code = child.poll()
            if code is not None:
                del self.active[job], self.places[job]
                self._conclude(job, code)
        records = {job: self._records(job) for job in self.active}
        self.display.update(self.state.done, self._remaining(records), records)

    def _conclude(self, job: Job, code: int) -> None:
        folder = run_folder(self.out, job)
        outcome = read_outcome(folder, data_fingerprint(job.config.data.source))
        if code == 0 and outcome is not None:
            self.state.outcomes[job] = outcome
            records = {other: self._records(other) for other in self.active}
            self.display.finish(job, outcome, self.state.done, self._remaining(records))
            self.report(self.state)
        else:
            self._fail(job, explain_failure(folder, code))

    def _fail(self, job: Job, sentence: str) -> None:
        self.state.failures[job] = sentence
        self.display.fail(job, sentence, self.state.done)
        self.report(self.state)

    def _stop_politely(self) -> None:
        for child in self.active.values():
            child.send_signal(signal.SIGTERM)
        for job, child in list(self.active.items()):
            code = child.wait()
            del self.active[job], self.places[job]
            if code == 0:  # it finished before the signal arrived
                self._conclude(job, code)

    def _records(self, job: Job) -> list[dict[str, Any]]:
        run = RunFolder(run_folder(self.out, job))
        size = run.metrics_file.stat().st_size if run.metrics_file.exists() else 0
        if job not in self.read or self.read[job][0] != size:
            self.read[job] = size, run.metrics()
        return self.read[job][1]

    def _remaining(self, records: dict[Job, list[dict[str, Any]]]) -> float | None:
        waiting = [job for job in self.state.waiting if job not in self.active]
        active = [_active_run(job, epochs) for job, epochs in records.items()]
        return remaining_seconds(waiting, active, self.state.outcomes, self.parallel)


def start_child(job: Job, folder: Path, parallel: int, lock: int, place: int) -> Child:
    """Start the process of a job, the one of number `place`; it holds the grid's lock until it ends."""
    command = [sys.executable, "-m", "imsvd.grid.worker", str(folder), "--parallel", str(parallel)]
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command if job.trained else [*command, "--untrained"],
            stdin=subprocess.PIPE,  # closes when this process dies, which stops the child
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                **gpus_of_run(place, parallel),
                "OMP_NUM_THREADS": str(threads_per_run(parallel)),
            },
            pass_fds=[lock],
            # Ctrl-C reaches the whole process group; children must get one signal, from us.
            start_new_session=True,
        )


def gpus_of_run(place: int, parallel: int) -> dict[str, str]:
    """Return the variable that gives run `place` of `parallel` its share of the GPUs, if there are any."""
    count = torch.cuda.device_count()
    if parallel == 1 or not count:
        return {}
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = listed.split(",") if listed else [str(number) for number in range(count)]
    first, last = place * count // parallel, (place + 1) * count // parallel
    own = names[first:last] or [names[place % count]]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


def threads_per_run(parallel: int) -> int:
    """Return the threads for each of `parallel` runs, at most OMP_NUM_THREADS."""
    cores = usable_processors()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores // parallel, int(wanted) if wanted.isdigit() else cores))


def explain_failure(folder: Path, code: int) -> str:
    """Return why the process of the run in `folder` produced no outcome."""
    try:
        return (folder / FAILURE).read_text()
    except OSError:
        pass
    if code < 0:
        return (
            f"its process was killed by {signal.Signals(-code).name}"
            f"{' (possibly out of memory)' if code == -signal.SIGKILL else ''}; "
            "run the same command to resume it."
        )
    return f"its process ended with exit code {code}; see {folder / 'output.txt'}."


def _read_state(jobs: list[Job], out: Path) -> GridState:
    """Read the outcomes of earlier calls."""
    state = GridState(jobs)
    fingerprints = {data: data_fingerprint(data) for data in {j.config.data.source for j in jobs}}
    for job in jobs:
        outcome = read_outcome(run_folder(out, job), fingerprints[job.config.data.source])
        if outcome is not None:
            state.outcomes[job] = outcome
    return state


def _active_run(job: Job, records: list[dict[str, Any]]) -> ActiveRun:
    if not records:
        return ActiveRun(job, job.epochs, None)
    last = records[-1]
    return ActiveRun(job, job.epochs - last["epoch"], last["total_seconds"] / last["epoch"])


@contextmanager
def _locked(out: Path, console: Console) -> Iterator[int]:
    """Lock `out` against other grids, until the last child process has ended."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(
            f"{out} cannot hold runs ({error.strerror}); choose another --out."
        ) from error
    try:
        if not _try_lock(descriptor):
            console.print(
                f"Waiting for active processes in {out} to end.", markup=False, highlight=False
            )
            deadline = time.monotonic() + LOCK_SECONDS
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise InputError(
                        f"another process is using {out}; wait for it to end or choose another --out."
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
