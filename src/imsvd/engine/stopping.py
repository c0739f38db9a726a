"""When a training saves and stops: signals, and the agreement of ranks."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

import torch

from imsvd.distributed import gather_lists, is_distributed, largest_of
from imsvd.errors import InputError

MOST_STEPS = 100
"""Largest number of steps between questions to all ranks."""


class StopRequest:
    """While active, remembers the first Ctrl-C or SIGTERM; a second one acts at once."""

    def __init__(self) -> None:
        self.signal_number = 0
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return bool(self.signal_number)

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._remember)
            except ValueError:  # outside the main thread signals belong to someone else
                return self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal_number = number
        signal.signal(number, self._previous[number])


class Agreement:
    """What the ranks want after a step: each has a clock and signals of its own, but all act together.

    Asking makes the device finish its work first, so ranks ask only every `SECONDS` or so, counted in
    steps, which are the same for all.
    """

    SECONDS = 2.0

    def __init__(self, device: torch.device) -> None:
        self.device, self.alone = device, not is_distributed()
        self._steps = self._wait = 1
        self._asked = time.monotonic()

    def ask(self, wish: int, *, last: bool) -> int:
        """Return the most urgent wish of all ranks, or 0 between questions; `last` always asks."""
        if self.alone:
            return wish
        self._wait -= 1
        if self._wait > 0 and not last:
            return 0
        now = time.monotonic()
        microseconds = max(1, int(1e6 * (now - self._asked) / self._steps))
        # The slowest rank's time of a step decides, so that all ask again after equally many steps.
        wish, slowest = largest_of([wish, microseconds], self.device)
        self._steps = self._wait = max(1, min(MOST_STEPS, int(1e6 * self.SECONDS / slowest)))
        self._asked = now
        return wish


def require_same_start(step: int, images: str) -> None:
    """Raise if ranks would continue from different steps, or with other images than each other."""
    if len(set(gather_lists([(step, images)]))) > 1:
        raise InputError(
            "the processes do not see the same checkpoint and images; put --out and the data on a disk "
            "that all machines share."
        )
