"""A disk that is full at a random write: one sentence, and the same command goes on when there is room."""

from __future__ import annotations

import random

from imsvd.bench.campaign.commands import COMMANDS
from imsvd.bench.campaign.mounts import LARGE, mounted, obstacle, remount, used
from imsvd.bench.campaign.stage import Stage
from imsvd.bench.campaign.tries import Kind, Outcome, judge, refused_well, tail

_ATTEMPTS = 6
_PAGE = 4096


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Give the command less room than it needs; then enough."""
    stage.reference(name)
    work = stage.world.work
    with mounted(work):
        stage.reset(name)
        before = used(work)
        stage.start(name).wait()
        needed = max(used(work), before + _PAGE)
    for _ in range(_ATTEMPTS):
        size = max(_PAGE, before) + draw.randrange(max(1, needed - before))
        with mounted(work):
            stage.reset(name)
            remount(work, f"size={size - size % _PAGE + _PAGE}")
            ended = stage.start(name).wait()
            if ended.code == 0:  # just enough
                needed = max(before + 1, size)
                continue
            done = f"{size - before:,} bytes of room"
            if not refused_well(name, ended):
                return Outcome("lost", f"{done}: no single sentence: {tail(ended)}")
            remount(work, f"size={LARGE}")
            return judge(stage, name, stage.start(name).wait(), f"{done}: {ended.sentence}")
    return Outcome("same", "the smallest room was enough")


KIND = Kind("full disk", tuple(name for name in COMMANDS if "ranks" not in name), attempt, obstacle)
