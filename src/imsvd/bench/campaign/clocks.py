"""A wall clock that jumps by years, forward and back, and files that carry its times."""

from __future__ import annotations

import os
import random
import signal

from imsvd.bench.campaign.stage import Stage
from imsvd.bench.campaign.tries import Kind, Outcome, judge

_TEN_YEARS = 10 * 365.25 * 86400
_READS = 200
"""Reads of the clock that jump; later ones are right."""


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Kill a command under a jumping clock, change the times of its files, and run it again."""
    reference = stage.reference(name)
    stage.reset(name)
    step = draw.randint(1, reference.disk_steps)
    ended = stage.start(name, fault={"clock": _jumps(draw), "kill_at": step}).wait()
    if ended.code != -signal.SIGKILL:
        return judge(stage, name, ended, "never killed")
    shift = draw.uniform(-_TEN_YEARS, _TEN_YEARS)
    for path in stage.world.work.rglob("*"):
        state = path.stat()
        os.utime(path, (state.st_atime + shift, state.st_mtime + shift))
    done = f"killed at disk step {step}, files {shift / 86400:+,.0f} days"
    return judge(stage, name, stage.start(name, fault={"clock": _jumps(draw)}).wait(), done)


def _jumps(draw: random.Random) -> list[float]:
    return [draw.uniform(-_TEN_YEARS, _TEN_YEARS) for _ in range(_READS)]


KIND = Kind(
    "clock that jumps", ("pretrain", "discretize", "linear", "explain", "compare", "index"), attempt
)
