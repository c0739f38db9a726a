"""The state of a long pass over images, saved now and then so that a stopped pass can go on.

It is saved as the pass goes, not when it is interrupted: an interruption may come in the middle of an
addition, and a kill leaves no time for anything.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imsvd.files import complete_or_absent

INTERVAL = 15.0
"""Seconds between two savings, and so the most that is lost."""

_COST = 0.05
"""Largest share of the time that goes into saving; a large state is saved less often."""

State = Mapping[str, NDArray[Any]]


class PartialPass:
    """The file that holds how far a pass has come.

    Args:
        path: the file, ending in .npz.
        key: names encoder and images; the state of a pass over others is not used.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._interval = INTERVAL
        self._saved_at = time.monotonic()

    def read(self) -> dict[str, NDArray[Any]] | None:
        """The state that was saved last, or nothing if there is none, or a damaged or other one."""
        try:
            with np.load(self._path, allow_pickle=False) as file:
                state = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return None
        return state if str(state.pop("key", "")) == self._key else None

    def save_when_due(self, state: Callable[[], State]) -> None:
        """Save the state if the last saving is long ago; call it only when the state is consistent."""
        started = time.monotonic()
        if started - self._saved_at < self._interval:
            return
        arrays: dict[str, Any] = {**state(), "key": np.array(self._key)}
        with complete_or_absent(self._path) as temporary, temporary.open("wb") as file:
            # Straight into the file: a joint matrix of 8,160 units is half a GiB.
            np.savez(file, **arrays)
        self._saved_at = time.monotonic()
        self._interval = max(INTERVAL, (self._saved_at - started) / _COST)

    def remove(self) -> None:
        """Forget the state of a pass that is finished."""
        self._path.unlink(missing_ok=True)
