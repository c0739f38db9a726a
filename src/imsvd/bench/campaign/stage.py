"""Where tries happen: the world that commands read, their processes, and how they end undisturbed."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imsvd.bench.campaign.commands import (
    COMMANDS,
    HOSTS,
    IMAGES,
    SIDE,
    TEST_IMAGES,
    World,
    write_images,
)
from imsvd.bench.campaign.digests import Digests, differences, digest_folder
from imsvd.bench.campaign.mounts import unmount_leftovers
from imsvd.bench.campaign.processes import (
    PATIENCE,
    Fault,
    ForkServer,
    Running,
    free_port,
    torchrun_variables,
)
from imsvd.files import write_atomically

TORCHRUN_SECONDS = 30
"""Time that torchrun gives other ranks after one has failed, between SIGTERM and SIGKILL."""


ALL = {**COMMANDS, **HOSTS}


class Reference(NamedTuple):
    """How a command ends that nothing interrupts."""

    digests: Digests
    seconds: float
    disk_steps: int
    """Files that its first rank opens, renames and removes."""
    losses: list[float]
    """Of all epochs, if it is a training."""


class Ended(NamedTuple):
    """How a command has ended."""

    code: int
    """Exit code of the first rank that failed; 0 if none did."""
    said: str
    """What it printed."""

    @property
    def sentence(self) -> str:
        """The sentence of a refusal, or an empty string if there is not exactly one."""
        lines = [line for line in self.said.splitlines() if line.startswith("imsvd: ")]
        if self.code != 2 or not lines or len({*lines}) > 1 or "Traceback" in self.said:
            return ""
        return lines[0].removeprefix("imsvd: ")


class Started:
    """All ranks of a command."""

    def __init__(self, ranks: Sequence[Running]) -> None:
        self.ranks = ranks

    def wait(self) -> Ended:
        """Wait until all ranks have ended; what is left of a failure is ended as torchrun does."""
        codes = {}
        for rank in self._in_order():
            code = rank.wait()
            codes[rank.pid] = code
            if code:
                self._end_others(rank)
        code = next((code for code in codes.values() if code), 0)
        return Ended(code, "".join(rank.said() for rank in self.ranks))

    def _in_order(self) -> Sequence[Running]:
        """Return the ranks, those first that have ended first as far as can be seen."""
        self.ended_within(PATIENCE)
        return sorted(self.ranks, key=lambda rank: not rank.ended_within(0))

    def _end_others(self, failed: Running) -> None:
        for rank in self.ranks:
            if rank is not failed and not rank.ended_within(0):
                rank.kill(signal.SIGTERM)
                if not rank.ended_within(TORCHRUN_SECONDS):
                    rank.kill(signal.SIGKILL, everything=True)

    def ended_within(self, seconds: float) -> bool:
        """Return whether any rank ends within `seconds`."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            if any(rank.ended_within(max(0.0, min(0.02, left))) for rank in self.ranks):
                return True
            if left <= 0:
                return False


class Stage:
    """The folder of a campaign, and the server that starts its commands."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self.world, self.server = World(folder), server
        self._references: dict[str, Reference] = {}

    def prepare(self) -> None:
        """Write the images and train the encoder that commands read, unless both are there."""
        unmount_leftovers(self.world.work)
        done = self.world.folder / "prepared"
        if done.exists():
            return
        shutil.rmtree(self.world.folder, ignore_errors=True)
        self.clear()
        write_images(self.world.images / "train", IMAGES, seed=0)
        write_images(self.world.images / "test", TEST_IMAGES, seed=1)
        write_images(self.world.mixed, IMAGES, seed=2, tallest=SIDE + 8)
        scenes = ["scenes", str(self.world.scenes), "--images", "8", "--size", "64"]
        for words in (scenes, COMMANDS["pretrain"].words(self.world)):
            ended = self._wait(words)
            if ended.code:
                raise RuntimeError(f"{words[0]} failed before any fault:\n{ended.said}")
        (self.world.work / "run").rename(self.world.run)
        done.touch()

    def _wait(self, words: Sequence[str]) -> Ended:
        return Started([self.server.start(words, self.world.work / "output.txt")]).wait()

    def clear(self) -> None:
        """Empty the working folder."""
        # Not the folder itself: something may be mounted over it.
        shutil.rmtree(self.world.work, ignore_errors=True)
        self.world.work.mkdir(parents=True, exist_ok=True)

    def reset(self, name: str) -> None:
        """Make the working folder as it is before the command has ever run."""
        self.clear()
        if ALL[name].reads_run:
            shutil.copytree(self.world.run, self.world.work / "run")

    def start(
        self,
        name: str,
        *,
        fault: Fault | None = None,
        faulty_rank: int = 0,
        more: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Started:
        """Start a command of `COMMANDS`; `fault` and more arguments apply to it."""
        command = ALL[name]
        words = [*command.words(self.world), *more]
        port, ranks = free_port(), []
        for rank in range(command.ranks):
            variables = dict(environment or {})
            if command.ranks > 1:
                variables |= torchrun_variables(rank, command.ranks, port, per_host=command.ranks)
            output = self.world.folder / f"output-{rank}.txt"
            output.unlink(missing_ok=True)
            ranks.append(
                self.server.start(
                    words,
                    output,
                    environment=variables,
                    fault=fault if rank == faulty_rank else None,
                )
            )
        return Started(ranks)

    def digests(self) -> Digests:
        """Return the hashes of all results in the working folder."""
        return digest_folder(self.world.work)

    def differences(self, name: str) -> str:
        """Name the files that are not as they would be without any fault."""
        return differences(self.digests(), self.reference(name).digests)

    def reference(self, name: str) -> Reference:
        """Return how the command ends undisturbed; the first time, run it twice and compare.

        The first time empties the working folder, so a try asks for it before anything else.
        """
        if name in self._references:
            return self._references[name]
        path = self.world.folder / "references" / f"{name}.json"
        if not path.exists():
            first, second = self._undisturbed(name), self._undisturbed(name)
            if found := differences(second.digests, first.digests):
                raise RuntimeError(f"two undisturbed runs of {name} differ: {found}")
            write_atomically(path, json.dumps(second).encode())
        self._references[name] = Reference(*json.loads(path.read_text()))
        return self._references[name]

    def _undisturbed(self, name: str) -> Reference:
        self.reset(name)
        counted = self.world.folder / "disk-steps"
        before = time.monotonic()
        ended = self.start(name, fault={"count_into": str(counted)}).wait()
        seconds = time.monotonic() - before
        if ended.code:
            raise RuntimeError(f"{name} failed without any fault:\n{ended.said}")
        losses = self.losses()
        return Reference(self.digests(), seconds, int(counted.read_text()), losses)

    def losses(self) -> list[float]:
        """Return the losses of all epochs of the run in the working folder, if there is one."""
        path = self.world.work / "run" / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [float(json.loads(line)["loss"]) for line in lines]
