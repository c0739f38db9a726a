"""The forking server of `tests.engine.forking`, in which the runs of a grid are forked as well.

The grid, its children and their signals are real processes; only the imports are saved.
"""

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from imsvd import compare
from imsvd.grid import runner, worker
from imsvd.grid.jobs import Job
from tests.engine import forking
from tests.engine.processes import ENVIRONMENT, ROOT, ForkingServer


class GridServer(ForkingServer):
    """Starts `imsvd …` in a process that forks the runs of its grid."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.grid.forking"],
            cwd=ROOT,
            env=ENVIRONMENT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


class ForkedChild:
    """A forked run, seen as `subprocess.Popen` would show it."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe = pid, pipe
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code if self.code is not None else self._wait(os.WNOHANG)

    def wait(self) -> int:
        code = self.code if self.code is not None else self._wait(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.code = os.waitstatus_to_exitcode(status)
            os.close(self.pipe)
        return self.code


def fork_child(job: Job, folder: Path, parallel: int, lock: int, place: int) -> ForkedChild:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reading)
        return ForkedChild(pid, writing)
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.close(writing)
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for source, target in ((reading, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        untrained = [] if job.trained else ["--untrained"]
        sys.argv = ["worker", str(folder), "--parallel", str(parallel), *untrained]
        worker.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    assert compare is not None
    runner.start_child = fork_child
    forking.serve()
