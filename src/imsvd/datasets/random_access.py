"""Bytes at any place of some files, from any thread and any process."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

# Well below the 1,024 files that a process may commonly have open; beyond, each read opens anew.
_MAX_OPEN = 256


class RandomAccessFiles:
    """Files opened on first use.

    Pickling leaves the open files behind. A forked process inherits them, which is harmless: no
    read depends on a file's position, the only thing they share.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._open: dict[int, BinaryIO] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["paths"])  # type: ignore[misc]

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of file `number`, fewer than `length` only at its end; raises OSError."""
        if len(self.paths) > _MAX_OPEN:
            with self.paths[number].open("rb", buffering=0) as file:
                return self._read_at(file, offset, length)
        opened = self._open.get(number)
        if opened is None:
            # Of two threads that get here together one keeps its file; the other's is dropped.
            opened = self._open.setdefault(number, self.paths[number].open("rb", buffering=0))
        return self._read_at(opened, offset, length)

    def _read_at(self, file: BinaryIO, offset: int, length: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(file.fileno(), length, offset)
        with self._lock:  # Windows, where no process is forked
            file.seek(offset)
            return file.read(length)
