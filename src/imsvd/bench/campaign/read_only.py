"""A folder that cannot be written to, before a command or while it is interrupted."""

from __future__ import annotations

import random

from imsvd.bench.campaign.kills import kill_once
from imsvd.bench.campaign.mounts import mounted, obstacle, remount
from imsvd.bench.campaign.stage import Stage
from imsvd.bench.campaign.tries import WELL, Kind, Outcome, judge, refused_well, tail


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Run the command in a read-only folder, then in a writable one."""
    stage.reference(name)
    work = stage.world.work
    with mounted(work):
        stage.reset(name)
        done = "from the start"
        if draw.random() < 0.7:
            done = kill_once(stage, name, draw).done or "after the end"
        remount(work, "ro")
        ended = stage.start(name).wait()
        # After the end, or after a kill in the last moment, nothing is left to write.
        if ended.code and not refused_well(name, ended):
            return Outcome("lost", f"{done}: no single sentence: {tail(ended)}")
        remount(work, "rw")
        if ended.code == 0 or done == "after the end":
            return judge(stage, name, WELL, f"{done}: nothing was left to write")
        return judge(stage, name, stage.start(name).wait(), f"{done}: {ended.sentence}")


KIND = Kind(
    "read-only folder",
    ("pretrain", "discretize", "linear", "coco", "explain", "compare", "index"),
    attempt,
    obstacle,
)
