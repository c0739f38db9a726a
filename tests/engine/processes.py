"""Training runs in processes of their own, to be killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
ROOT = Path(__file__).parents[2]
PATIENCE = 120

Command = Sequence[str]
Launcher = Callable[[Command, Path], "Running"]


class Running:
    """A command at work; `output` receives what it prints."""

    def __init__(self, pid: int, wait: Callable[[], int], alive: Callable[[], bool]) -> None:
        self.pid, self._wait, self.alive = pid, wait, alive

    def wait(self) -> int:
        """Exit code, negative after a signal that killed it."""
        return self._wait()

    def send(self, number: signal.Signals) -> None:
        if self.alive():
            os.kill(self.pid, number)


def python_module(arguments: Command, output: Path) -> Running:
    """`python -m imsvd …`, as a user starts it."""
    with output.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "imsvd", *arguments], stdout=file, stderr=file, env=ENVIRONMENT
        )
    return Running(process.pid, lambda: process.wait(PATIENCE), lambda: process.poll() is None)


class ForkingServer:
    """Starts the same entry point from a process that has imported everything already."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.forking"],
            cwd=ROOT,
            env=ENVIRONMENT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, arguments: Command, output: Path) -> Running:
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        answers = server.stdout
        server.stdin.write(json.dumps([list(arguments), str(output)]) + "\n")
        server.stdin.flush()
        pid = int(answers.readline())
        return Running(pid, lambda: int(answers.readline()), lambda: _is_running(pid))

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE)
        if self._server.stdout is not None:
            self._server.stdout.close()


def saved_step(run: Path) -> int:
    """Step of the newest finished checkpoint; 0 if there is none."""
    hashes = (run / "checkpoints").glob("step-*.sha256")
    return max((int(path.stem.partition("-")[2]) for path in hashes), default=0)


def wait_for_step(running: Running, run: Path, step: int) -> None:
    """Return when `run` has saved `step`, or the process has ended."""
    end = time.monotonic() + PATIENCE
    while saved_step(run) < step and running.alive():
        assert time.monotonic() < end, f"step {step} of {run} was never saved"
        time.sleep(0.002)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
