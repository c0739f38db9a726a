"""Several hosts, as network namespaces with an interface each, and the loss of one of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Self

from imsvd.bench.campaign.commands import HOSTS
from imsvd.bench.campaign.processes import PATIENCE, torchrun_variables
from imsvd.bench.campaign.stage import Ended, Stage, Started
from imsvd.bench.campaign.tries import Kind, Outcome, judge, tail

PORT = 29500
TIMEOUT, GRACE = 6.0, 30.0
"""Seconds: `compute.timeout_minutes` of the command, and what ranks may take to end after it."""
TOLERANCE = 1e-4
"""Largest relative difference of losses between numbers of hosts, which add up in other orders."""
_ATTEMPTS = 5
LOSSES = ("interface down", "process killed", "process stopped")


class Network:
    """Hosts 10.77.0.1, 10.77.0.2, … on one switch; nothing of the machine's own network is touched."""

    def __init__(self, hosts: int) -> None:
        self.names = [f"imsvd-{os.getpid()}-{number}" for number in range(hosts)]
        self._switch = f"imsvd-{os.getpid()}-switch"

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self._switch)
            self._ip_in(self._switch, "link", "add", "bridge", "type", "bridge")
            self._ip_in(self._switch, "link", "set", "bridge", "up")
            for number, name in enumerate(self.names):
                self._connect(name, number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _connect(self, name: str, number: int) -> None:
        _ip("netns", "add", name)
        port = f"port{number}"
        peer = ("peer", "name", "eth0", "netns", name)
        self._ip_in(self._switch, "link", "add", port, "type", "veth", *peer)
        self._ip_in(self._switch, "link", "set", port, "master", "bridge", "up")
        self._ip_in(name, "address", "add", f"{address(number)}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            self._ip_in(name, "link", "set", link, "up")

    def set_link(self, number: int, state: str) -> None:
        """Take the interface of a host "down", or bring it "up"."""
        self._ip_in(self.names[number], "link", "set", "eth0", state)

    @staticmethod
    def _ip_in(name: str, *arguments: str) -> None:
        _ip("-n", name, *arguments)


def address(number: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{number + 1}"


def variables(number: int, hosts: int, port: int = PORT) -> dict[str, str]:
    """Return the environment of the rank on a host, as torchrun sets it."""
    # All hosts share one host name here, which cannot be the address of each.
    named = {"GLOO_SOCKET_IFNAME": "eth0"}
    return torchrun_variables(number, hosts, port, address=address(0)) | named


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def obstacle() -> str:
    """Return why network namespaces cannot be made here, or an empty string."""
    try:
        with Network(1):
            return ""
    except FileNotFoundError:
        return "the command ip (iproute2) is not installed"
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here ({error.stderr.strip()})"


def start(stage: Stage, network: Network, hosts: int) -> Started:
    """Start the training with one rank on each of the first `hosts` hosts."""
    words = [*HOSTS["pretrain, 1 hosts"].words(stage.world), "--set", f"compute.nodes={hosts}"]
    ranks = []
    for number, name in enumerate(network.names[:hosts]):
        output = stage.world.folder / f"output-{number}.txt"
        output.unlink(missing_ok=True)
        # A single process needs no launcher.
        environment = variables(number, hosts) if hosts > 1 else {}
        ranks.append(stage.server.start(words, output, environment=environment, network=name))
    return Started(ranks)


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Lose a host at a random moment; go on with as many or fewer."""
    hosts = HOSTS[name].ranks
    stage.reference("pretrain, 1 hosts")
    reference = stage.reference(name)
    for _ in range(_ATTEMPTS):
        stage.reset(name)
        with Network(hosts) as network:
            started = start(stage, network, hosts)
            started.ended_within(draw.uniform(0.3, 0.9) * reference.seconds)
            victim, way = draw.randrange(hosts), draw.choice(LOSSES)
            seconds = lose(network, started, victim, way)
            others = [rank for number, rank in enumerate(started.ranks) if number != victim]
            ends = [Ended(rank.wait(), rank.said()) for rank in others]
            if not any(end.code for end in ends):
                continue  # they had ended before
            done = f"host {victim} lost ({way}), others ended after {seconds:.0f} s"
            if seconds > TIMEOUT + GRACE:
                return Outcome("lost", f"{done}, too late")
            if silent := [end for end in ends if not end.sentence]:
                return Outcome("lost", f"{done}: no single sentence: {tail(silent[0])}")
            left = draw.choice([count for count in (1, 2, 4) if count <= hosts])
            network.set_link(victim, "up")
            ended = start(stage, network, left).wait()
        done += f", went on with {left}"
        if left == hosts == 2:
            return judge(stage, name, ended, done)
        # Of more than two numbers, DDP adds up other pairs first in the first step after a resumption.
        return judge_loss(stage, ended, done)
    return Outcome("lost", f"{_ATTEMPTS} runs ended before the loss; nothing was tried")


def across(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Train across hosts, undisturbed."""
    del draw
    hosts = HOSTS[name].ranks
    stage.reference("pretrain, 1 hosts")
    stage.reset(name)
    with Network(hosts) as network:
        ended = start(stage, network, hosts).wait()
    return judge_loss(stage, ended, f"{hosts} hosts")


def lose(network: Network, started: Started, victim: int, way: str) -> float:
    """Lose a host; return the seconds until all other ranks have ended."""
    rank = started.ranks[victim]
    if way == "interface down":
        network.set_link(victim, "down")
    else:
        rank.kill(signal.SIGKILL if way == "process killed" else signal.SIGSTOP)
    before = time.monotonic()
    stopped = way == "process stopped"
    for other in started.ranks:
        if not (stopped and other is rank):
            other.ended_within(max(0.0, before + PATIENCE - time.monotonic()))
    seconds = time.monotonic() - before
    for other in started.ranks:
        other.kill(signal.SIGKILL, everything=True)
        other.wait()
    return seconds


def judge_loss(stage: Stage, ended: Ended, done: str) -> Outcome:
    """Compare the losses of all epochs with those of one process."""
    if ended.code:
        return Outcome("lost", f"{done}: exit code {ended.code}: {tail(ended)}")
    found, expected = stage.losses(), stage.reference("pretrain, 1 hosts").losses
    if not alike(found, expected):
        return Outcome("wrong", f"{done}: losses {found}, not {expected}")
    return Outcome("same", f"{done}: losses of one process")


def alike(found: Sequence[float], expected: Sequence[float]) -> bool:
    """Return whether losses agree within `TOLERANCE`."""
    return len(found) == len(expected) and all(
        abs(one - other) <= TOLERANCE * abs(other)
        for one, other in zip(found, expected, strict=True)
    )


_SUBJECTS = tuple(name for name in HOSTS if HOSTS[name].ranks > 1)
KIND = Kind("host lost", _SUBJECTS, attempt, obstacle, most=10)
ACROSS = Kind("none: hosts instead of one process", _SUBJECTS, across, obstacle, most=3)
