"""Long computations: one at a time in their own thread, while requests ask how far they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from imsvd.explorer.explorer import BusyError
from imsvd.population.counting import Progress

MOST_KEPT = 8
MOST_WAITING = 4


@dataclass
class _Task:
    future: Future[Any]
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Working:
    """A computation that is not finished: steps done, and steps in total (0 if unknown)."""

    done: int
    total: int

    def record(self) -> dict[str, Any]:
        """Return the response to a request that came too early."""
        return {"ready": False, "done": self.done, "total": self.total}


class Background:
    """Starts computations when they are first asked for, and keeps the newest results."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._tasks: dict[Hashable, _Task] = {}
        self._lock = threading.Lock()

    def result(self, key: Hashable, work: Callable[[Progress], Any]) -> Any:
        """Return the result of `work`, or `Working`; an error is raised once, then tried again."""
        with self._lock:
            task = self._tasks.get(key)
            if task is None:
                task = self._tasks[key] = self._start(work)
            if not task.future.done():
                return Working(task.done, task.total)
            if task.future.exception() is not None:
                del self._tasks[key]
        return task.future.result()

    def _start(self, work: Callable[[Progress], Any]) -> _Task:
        finished = [key for key, task in self._tasks.items() if task.future.done()]
        if len(self._tasks) - len(finished) >= MOST_WAITING:
            raise BusyError("Other comparisons are being computed; try again in a moment.")
        for key in finished[: max(0, len(self._tasks) - MOST_KEPT + 1)]:
            del self._tasks[key]
        task = _Task(Future())

        def progress(done: int, total: int) -> None:
            task.done, task.total = done, total

        task.future = self._executor.submit(work, progress)
        return task

    def close(self) -> None:
        """Drop what waits; what runs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)
