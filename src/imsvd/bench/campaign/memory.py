"""Memory that runs out in a process that reads images, or in a run of a comparison."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

from imsvd.bench.campaign.stage import Stage, Started
from imsvd.bench.campaign.tries import Kind, Outcome, judge, refused_well, tail

_ATTEMPTS = 5


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Kill a child process as the kernel does when memory is short, or give it no more memory."""
    reference = stage.reference(name)
    for _ in range(_ATTEMPTS):
        stage.reset(name)
        started = stage.start(name)
        started.ended_within(draw.uniform(0, 0.8 * reference.seconds))
        child = _await_child(started)
        if child is None:
            started.wait()
            continue
        done = draw.choice(list(SHORTAGES))
        with suppress(ProcessLookupError):  # it has just done its work
            SHORTAGES[done](child)
        ended = started.wait()
        if not ended.code:
            return judge(stage, name, ended, f"{done}, not needed any more")
        if not refused_well(name, ended):
            return Outcome("lost", f"{done}: no single sentence: {tail(ended)}")
        return judge(stage, name, stage.start(name).wait(), f"{done}: {ended.sentence}")
    return Outcome("lost", f"{_ATTEMPTS} runs had no child process; nothing was tried")


def _await_child(started: Started) -> int | None:
    """Return a child of the command, as soon as it has one; None if it ends before."""
    parent = started.ranks[0].pid
    while not started.ended_within(0):
        if found := children(parent):
            return found[-1]
        time.sleep(0.01)
    return None


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)


def _limit(child: int) -> None:
    """Refuse every further allocation."""
    resource.prlimit(child, resource.RLIMIT_AS, (0, 0))


SHORTAGES = {"a child killed": _kill, "a child given no more memory": _limit}


def children(parent: int) -> list[int]:
    """Return the process ids of the living children of `parent`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, above = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended since
            continue
        if int(above) == parent and state != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


KIND = Kind("out of memory in a child process", ("pretrain, readers", "compare"), attempt)
