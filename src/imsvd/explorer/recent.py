"""The most recently used results, in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Recent(Generic[Result]):
    """Keeps up to `most` results; the one not used for longest goes first. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: OrderedDict[Hashable, Result] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return the result kept under a key, or make it; one that fails is not kept."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        made = make()
        with self._lock:
            self._results[key] = made
            while len(self._results) > self._most:
                self._results.popitem(last=False)
        return made

    def clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._results.clear()
