"""SIGKILL at random moments; the same command again must end as if nothing had happened."""

from __future__ import annotations

import random
import signal
from typing import NamedTuple

from imsvd.bench.campaign.commands import COMMANDS
from imsvd.bench.campaign.stage import Ended, Stage
from imsvd.bench.campaign.tries import Kind, Outcome, judge

_ATTEMPTS = 8
"""Runs that may end before they are killed, because the machine has become faster."""


class Killed(NamedTuple):
    """What became of a command that was to be killed.

    Attributes:
        done: what was killed; empty if the command ended before.
        ended: how the command ended.
    """

    done: str
    ended: Ended


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Kill a command once or twice, then run it to its end."""
    stage.reference(name)
    for _ in range(_ATTEMPTS):
        stage.reset(name)
        done, ended = kill_once(stage, name, draw)
        if not done:
            if ended.code:
                return judge(stage, name, ended, "not killed yet")
            continue
        if draw.random() < 0.3:
            again, ended = kill_once(stage, name, draw)
            if not again:
                return judge(stage, name, ended, f"{done}, ended before another kill")
            done += f", then {again}"
        return judge(stage, name, stage.start(name).wait(), done)
    return Outcome("lost", f"{_ATTEMPTS} runs ended before their kill; nothing was tried")


def kill_once(stage: Stage, name: str, draw: random.Random) -> Killed:
    """Start a command and kill it, unless it ends before.

    Every second kill comes before a random step on the disk, where files are half done; the others
    after a random time.
    """
    reference, ranks = stage.reference(name), COMMANDS[name].ranks
    if draw.random() < 0.5:
        step = draw.randint(1, reference.disk_steps)
        started = stage.start(name, fault={"kill_at": step})  # the first rank, which writes
        ended = started.wait()
        killed = started.ranks[0].wait() == -signal.SIGKILL
        return Killed(f"rank 0 killed at disk step {step}" if killed else "", ended)
    victim, moment = draw.randrange(ranks), draw.uniform(0, reference.seconds)
    started = stage.start(name)
    if started.ended_within(moment):
        return Killed("", started.wait())
    everyone = draw.random() < 0.5
    for number, rank in enumerate(started.ranks):
        if everyone or number == victim:
            # With its readers and runs, as when a machine loses power, or alone.
            rank.kill(everything=everyone)
    ended = started.wait()
    if all(rank.wait() != -signal.SIGKILL for rank in started.ranks):
        return Killed("", ended)  # it ended in the same moment
    return Killed(f"{'all' if everyone else f'rank {victim}'} killed after {moment:.2f} s", ended)


KIND = Kind("SIGKILL at a random moment", tuple(COMMANDS), attempt)
