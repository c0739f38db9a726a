"""Killing a process, at each of its steps on the disk or at any time."""

import os
import signal
import sys
import time
from collections.abc import Callable

STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


def killed_at_step(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a process that is killed before it opens, renames or removes its `number`th file.

    Returns:
        Whether it was killed before it was done.
    """
    count = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in STEPS and not str(arguments[0]).endswith(".py"):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return _killed(lambda: sys.addaudithook(watch), work)


def killed_after(seconds: float, work: Callable[[], object]) -> bool:
    """Do `work` in a process that is killed after some time; return whether it was still at it."""
    return _killed(lambda: None, work, seconds)


def _killed(prepare: Callable[[], None], work: Callable[[], object], seconds: float = 60) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            prepare()
            work()
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.001)
    else:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return os.WIFSIGNALED(status)
