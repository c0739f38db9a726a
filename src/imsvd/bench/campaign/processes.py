"""Commands in processes that can be killed: the client of `imsvd.bench.campaign.server`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypedDict

PATIENCE = 900.0
"""Seconds after which a command that should have ended counts as hanging."""


class Fault(TypedDict, total=False):
    """What happens to a child from inside."""

    kill_at: int
    """Kill it before its n-th step on the disk."""
    count_into: str
    """Write its number of steps on the disk to this file."""
    fill_at: int
    """Fill the disk of `filler` before its n-th step on the disk, or that of a run that it forks."""
    filler: str
    """File that takes up the space."""
    room: int
    """Bytes that `filler` leaves."""
    clock: list[float]
    """Seconds by which the wall clock jumps, one jump after the other, each time it is read."""


class Request(TypedDict):
    """A command to run."""

    arguments: list[str]
    output: str
    """File that receives what it prints."""
    environment: dict[str, str]
    fault: Fault
    network: str
    """Network namespace that it enters, or an empty string."""


class HangingError(Exception):
    """A command did not end in time."""


class Running:
    """A command at work."""

    def __init__(self, server: ForkServer, pid: int, output: Path) -> None:
        self._server, self.pid, self.output = server, pid, output

    def wait(self, seconds: float = PATIENCE) -> int:
        """Return the exit code, negative after a signal that killed it.

        Raises:
            HangingError: after `seconds`; the command is killed.
        """
        code = self._server.code(self.pid, seconds)
        if code is None:
            self.kill(everything=True)
            self._server.code(self.pid, PATIENCE)
            raise HangingError(f"no end after {seconds:.0f} s")
        return code

    def ended_within(self, seconds: float) -> bool:
        """Return whether it ends within `seconds`."""
        return self._server.code(self.pid, seconds) is not None

    def kill(self, number: int = signal.SIGKILL, *, everything: bool = False) -> None:
        """Send a signal to the command, or to all processes of its session."""
        if self._server.code(self.pid, 0) is None:
            with contextlib.suppress(ProcessLookupError):  # it ended in this moment
                (os.killpg if everything else os.kill)(self.pid, number)

    def said(self) -> str:
        """Return what it has printed."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""


class ForkServer:
    """Starts commands from a process that has imported everything."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "NO_COLOR": "1",
            "COLUMNS": "1000",
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "imsvd.bench.campaign.server"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._codes: dict[int, int] = {}
        self._started: list[int] = []
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def start(
        self,
        arguments: Sequence[str],
        output: Path,
        *,
        environment: Mapping[str, str] | None = None,
        fault: Fault | None = None,
        network: str = "",
    ) -> Running:
        """Start `imsvd` with `arguments`; see `Request`."""
        request = Request(
            arguments=list(arguments),
            output=str(output),
            environment=dict(environment or {}),
            fault=fault or {},
            network=network,
        )
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        while not self._started:
            self._receive(PATIENCE)
        return Running(self, self._started.pop(), output)

    def code(self, pid: int, seconds: float) -> int | None:
        """Return the exit code of a child, or None if it is still running after `seconds`."""
        end = time.monotonic() + seconds
        while pid not in self._codes:
            if not self._receive(max(0.0, end - time.monotonic())):
                return None
        return self._codes[pid]

    def _receive(self, seconds: float) -> bool:
        """Read answers for at most `seconds`; return whether any came."""
        assert self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], seconds)[0]:
            return False
        received = os.read(self._server.stdout.fileno(), 1 << 16)
        if not received:
            raise RuntimeError("the server of the campaign has ended; its error is printed above")
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            pid, *code = map(int, line.split())
            if code:
                self._codes[pid] = code[0]
            else:
                self._started.append(pid)
        return True


def torchrun_variables(
    rank: int, ranks: int, port: int, *, address: str = "127.0.0.1", per_host: int = 1
) -> dict[str, str]:
    """Return the environment that torchrun gives to `rank`."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank % per_host),
        "LOCAL_WORLD_SIZE": str(per_host),
        "GROUP_RANK": str(rank // per_host),
        "GROUP_WORLD_SIZE": str(ranks // per_host),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "campaign",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
