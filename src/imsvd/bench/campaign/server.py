"""A process that has imported everything and forks a child for each command that it is sent.

A child runs what `python -m imsvd …` runs, in a session of its own that can be killed, without
paying seconds for imports every time. The runs of a grid are forked in the same way.

Requests are JSON lines on standard input, see `Request`. Answers are the child's process id at
once, and a line with the id and the exit code when it has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from imsvd.bench.campaign.processes import Fault, Request
from imsvd.grid import runner, worker
from imsvd.grid.jobs import Job

PRELOADED = (
    "torch._dynamo",  # imported by DDP's constructor
    "imsvd.compare",
    "imsvd.discretizing",
    "imsvd.evaluation.coco",
    "imsvd.explanations",
    "imsvd.figures",
    "imsvd.index.building",
    "imsvd.pretraining.pretrain",
)
DISK_STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
"""Audit events at which a process can be killed."""
_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h


class ForkedRun:
    """A forked run of a grid, seen as `subprocess.Popen` would show it."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe = pid, pipe
        self.code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while running."""
        return self.code if self.code is not None else self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.code if self.code is not None else self._wait(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal if the process is still running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.code = os.waitstatus_to_exitcode(status)
            os.close(self.pipe)
        return self.code


def fork_run(job: Job, folder: Path, parallel: int, lock: int, place: int) -> ForkedRun:
    """Do what `grid.runner.start_child` does, by forking."""
    del lock, place  # all files are inherited, and there is no GPU to share
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.dup2(reading, 0)
        untrained = [] if job.trained else ["--untrained"]
        arguments = ["worker", str(folder), "--parallel", str(parallel), *untrained]
        _become(arguments, str(folder / "output.txt"), worker.main)
    os.close(reading)
    return ForkedRun(pid, writing)


def _become(arguments: list[str], output: str, main: Callable[[], object]) -> NoReturn:
    """Run `main` as the main program of this forked process, and end it."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.argv = arguments
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(request: Request) -> NoReturn:
    """Be `python -m imsvd …` with the fault of `request`."""

    def main() -> None:
        os.environ.update(request["environment"])
        if request["network"]:
            _enter_network(request["network"])
        counted = _prepare(request["fault"])
        try:
            runpy.run_module("imsvd", run_name="__main__")
        finally:
            if "count_into" in request["fault"]:
                total = counted()
                Path(request["fault"]["count_into"]).write_text(str(total))

    _become(["imsvd", *request["arguments"]], request["output"], main)


def _prepare(fault: Fault) -> Callable[[], int]:
    """Install a fault in this process; return a function that counts its steps on the disk."""
    count, last = 0, fault.get("kill_at")
    own = os.getpid()

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in DISK_STEPS and not str(arguments[0]).endswith((".py", ".pyc")):
            count += 1
            if count == last and os.getpid() == own:
                os.kill(own, signal.SIGKILL)
            if count == fault.get("fill_at"):
                _fill(Path(fault["filler"]), fault["room"])

    if fault:
        sys.addaudithook(watch)
    if "clock" in fault:
        _jump(fault["clock"])
    return lambda: count


def _fill(filler: Path, room: int) -> None:
    """Take up the space of a file system, except for `room` bytes."""
    state = os.statvfs(filler.parent)
    taken = state.f_bavail * state.f_frsize - room
    # Another process may have filled it meanwhile; that must not look like an error of what is opened here.
    with contextlib.suppress(OSError):
        if taken > 0:
            with filler.open("ab") as file:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, taken)


def _jump(jumps: list[float]) -> None:
    """Let the wall clock jump whenever it is read; the monotonic clock is not affected by settings."""
    read, left = time.time, iter(jumps)

    def jumped() -> float:
        return read() + next(left, 0.0)

    time.time = jumped
    time.time_ns = lambda: int(1e9 * jumped())


def _enter_network(name: str) -> None:
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NETWORK):
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    os.close(descriptor)


def serve() -> None:
    """Fork a child per request until standard input closes; then kill those that are left."""
    for name in PRELOADED:
        importlib.import_module(name)
    runner.start_child = fork_run
    children: dict[int, int] = {}  # by their pidfd
    poll = select.poll()
    poll.register(0, select.POLLIN)
    answer = os.dup(1)
    requests = b""
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                received = os.read(0, 1 << 16)
                requests += received
                if not received:
                    for pid in children.values():
                        os.kill(pid, signal.SIGKILL)
                    return
            else:
                pid = children.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(answer, f"{pid} {code}\n".encode())
        *lines, requests = requests.split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                for descriptor in (*children, answer):
                    os.close(descriptor)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                _run(json.loads(line))
            child = os.pidfd_open(pid)
            children[child] = pid
            poll.register(child, select.POLLIN)
            os.write(answer, f"{pid}\n".encode())


if __name__ == "__main__":
    serve()
