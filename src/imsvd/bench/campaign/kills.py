"""SIGKILL at random moments; the same command again must end as if nothing had happened."""

from __future__ import annotations

import random
import signal

from imsvd.bench.campaign.commands import COMMANDS
from imsvd.bench.campaign.stage import Stage
from imsvd.bench.campaign.tries import WELL, Kind, Outcome, judge

_ATTEMPTS = 5
"""Runs that may end before they are killed, because the machine has become faster."""


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Kill a command once or twice, then run it to its end."""
    stage.reference(name)
    for _ in range(_ATTEMPTS):
        stage.reset(name)
        done = kill_once(stage, name, draw)
        if done and draw.random() < 0.3:
            again = kill_once(stage, name, draw)
            if not again:
                return judge(stage, name, WELL, f"{done}, ended before another kill")
            done += f", then {again}"
        if done:
            return judge(stage, name, stage.start(name).wait(), done)
    return Outcome("lost", f"{_ATTEMPTS} runs ended before their kill; nothing was tried")


def kill_once(stage: Stage, name: str, draw: random.Random) -> str:
    """Start a command and kill it; return what was killed, or an empty string if it ended before.

    Every second kill comes before a random step on the disk, where files are half done; the others
    after a random time.
    """
    reference, ranks = stage.reference(name), COMMANDS[name].ranks
    victim = draw.randrange(ranks)
    if draw.random() < 0.5:
        step = draw.randint(1, reference.disk_steps)
        started = stage.start(name, fault={"kill_at": step}, faulty_rank=victim)
        ended = started.wait()
        return f"rank {victim} killed at disk step {step}" if ended.code == -signal.SIGKILL else ""
    moment = draw.uniform(0, reference.seconds)
    started = stage.start(name)
    if started.ended_within(moment):
        started.wait()
        return ""
    everyone = draw.random() < 0.5
    for number, rank in enumerate(started.ranks):
        if everyone or number == victim:
            # With its readers and runs, as when a machine loses power, or alone.
            rank.kill(everything=everyone)
    started.wait()
    return f"{'all' if everyone else f'rank {victim}'} killed after {moment:.2f} s"


KIND = Kind("SIGKILL at a random moment", tuple(COMMANDS), attempt)
