"""A disk that is full at a random moment: one sentence, and the same command goes on when there is room."""

from __future__ import annotations

import random

from imsvd.bench.campaign.commands import COMMANDS
from imsvd.bench.campaign.mounts import mounted, obstacle
from imsvd.bench.campaign.stage import Stage
from imsvd.bench.campaign.tries import Kind, Outcome, judge, refused_well, tail

_ATTEMPTS = 8
_MOST_ROOM = 1 << 17
"""Bytes that may be left, so that some files fit and another is cut off in the middle."""


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Fill the disk at a random moment; then make room and run the command again."""
    reference = stage.reference(name)
    for _ in range(_ATTEMPTS):
        step, room = draw.randint(1, reference.disk_steps), draw.choice((0, _MOST_ROOM))
        with mounted(stage.world.work):
            stage.reset(name)
            filler, room = stage.world.work / "filler", draw.randint(0, room)
            ended = stage.start(
                name, fault={"fill_at": step, "filler": str(filler), "room": room}
            ).wait()
            filler.unlink(missing_ok=True)
            done = f"{room:,} bytes left at disk step {step}"
            if ended.code and not refused_well(name, ended):
                return Outcome("lost", f"{done}: no single sentence: {tail(ended)}")
            if ended.code:
                again = stage.start(name).wait()
                return judge(stage, name, again, f"{done}: {ended.sentence}")
            found = judge(stage, name, ended, f"{done}, which was enough")
            if found.verdict != "same":
                return found
    return Outcome("lost", f"{_ATTEMPTS} runs had room enough; nothing was tried")


KIND = Kind("full disk", tuple(name for name in COMMANDS if "ranks" not in name), attempt, obstacle)
