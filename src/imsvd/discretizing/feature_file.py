"""The file of cached features: made whole, checked before it is used again, read with bounded memory.

KEY.npy     half floats, (images, views + 1, features); the last one is that of the plain image
KEY.json    what the features belong to, how many images are done, and a hash of their bytes

KEY is a hash of everything that the features depend on, so that a cache of another encoder, of
changed images or of other views has another name and is never used by mistake; it stays until
somebody deletes it. A file that was exchanged, cut or edited is refused.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from imsvd.datasets.sources import hash_listing
from imsvd.errors import InputError
from imsvd.files import write_atomically
from imsvd.progress import progress_bar

HASHED = 2**24
"""Bytes that are read at a time to hash them."""
READ_ROWS = 64
"""Images whose features are mapped at a time: the system maps 64 kB for each."""

Half = NDArray[np.float16]
Rows = NDArray[np.int64]


class CacheFile:
    """The two files of a cache.

    Args:
        identity: everything that the features depend on, as JSON can hold it.
        shape: images, features per image, width.
        folder: where the files are, or will be.
    """

    def __init__(self, identity: dict[str, Any], shape: tuple[int, int, int], folder: Path) -> None:
        self.identity = identity
        key = hash_listing([json.dumps(self.identity).encode()])
        self.path, self.description = folder / f"{key}.npy", folder / f"{key}.json"
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f2", "fortran_order": False, "shape": shape}
        )
        self._header = header.getvalue()
        self.total, count, width = shape
        self._row = 2 * count * width
        self.bytes = len(self._header) + self.total * self._row
        self._digest = hashlib.sha256(self._header)
        self._hashed = 0

    def done(self) -> int:
        """Return how many images, from the first on, have their features in the file."""
        stored = self._stored()
        return 0 if stored is None else int(stored["done"])

    def _stored(self) -> dict[str, Any] | None:
        """Return the description, or None if there is none yet."""
        try:
            stored: dict[str, Any] = json.loads(self.description.read_text())
            return {**stored, "done": int(stored["done"])}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._refusal(f"{self.description.name} is damaged") from error

    def prepare(self, console: Console) -> None:
        """Check what is there, or else reserve the file, so that a full disk shows before the work."""
        stored = self._stored()
        if stored is None:
            self._reserve()
            return
        expected = json.loads(json.dumps(self.identity))
        others = [name for name, value in expected.items() if stored.get(name) != value]
        if others:
            raise self._refusal(f"its description is of other {' and '.join(others)}")
        try:
            state = self.path.stat()
        except OSError as error:
            raise self._refusal("it is missing") from error
        if state.st_size != self.bytes:
            raise self._refusal(f"it has {state.st_size:,} bytes instead of {self.bytes:,}")
        if stored.get("modified") != state.st_mtime_ns or stored["done"] < self.total:
            self._check_content(stored, console)

    def _check_content(self, stored: dict[str, Any], console: Console) -> None:
        """Hash what is done: the file was written to since, or is to be continued."""
        done = min(stored["done"], self.total)
        with progress_bar(console) as bar:
            task = bar.add_task("checking features", total=done)
            self._hash(done, lambda count: bar.update(task, completed=count))
        # Caches of the first version have no hash.
        if stored.get("content", self._digest.hexdigest()) != self._digest.hexdigest():
            raise self._refusal("its content was changed")
        if done == self.total:
            self.advance(done)

    def _hash(self, done: int, progress: Callable[[int], object] = lambda _: None) -> None:
        """Continue the hash of the file up to the features of `done` images."""
        rows = max(1, HASHED // self._row)
        with self.path.open("rb") as file:
            if self._hashed == 0 and file.read(len(self._header)) != self._header:
                raise self._refusal("its header was changed")
            file.seek(len(self._header) + self._hashed * self._row)
            while self._hashed < done:
                count = min(rows, done - self._hashed)
                self._digest.update(file.read(count * self._row))
                self._hashed += count
                progress(self._hashed)

    def _reserve(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Never emptied: another run may be writing the same features.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                os.ftruncate(descriptor, self.bytes)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, self.bytes)
                os.write(descriptor, self._header)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.discard()
            raise self._failure(error) from error

    def discard(self) -> None:
        """Delete both files."""
        for path in (self.description, self.path):
            with suppress(OSError):
                path.unlink()

    def write(self, first: int, rows: Half) -> None:
        """Write the features of images `first`, `first + 1`, …"""
        # Not through the map: a page that finds no room on the disk would kill the process.
        content = memoryview(rows.tobytes())
        place = len(self._header) + first * self._row
        try:
            descriptor = os.open(self.path, os.O_WRONLY)
            try:
                while content:
                    written = os.pwrite(descriptor, content, place)
                    content, place = content[written:], place + written
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failure(error) from error

    def flush(self) -> None:
        """Wait until what was written is on the disk."""
        try:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failure(error) from error

    def advance(self, done: int) -> None:
        """Note that the first `done` images are complete and flushed."""
        self._hash(done)
        state = {
            "done": done,
            "content": self._digest.hexdigest(),
            "modified": self.path.stat().st_mtime_ns,
        }
        content = json.dumps({**state, **self.identity}, indent=2) + "\n"
        write_atomically(self.description, content.encode())

    def _refusal(self, reason: str) -> InputError:
        return InputError(
            f"{self.path} does not hold the features that were cached there ({reason}); delete it and "
            f"{self.description.name} to compute them again, or name another folder with --cache."
        )

    def _failure(self, error: OSError) -> InputError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return InputError(
                f"the disk is full: features need {size_text(self.bytes)} in {self.path.parent}; free some "
                "space or name another folder with --cache, and run the same command to resume."
            )
        return InputError(f"{self.path} could not be written: {error.strerror}.")


def size_text(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def open_features(path: Path) -> Half:
    """Map a file of features."""
    features: Half = np.load(path, mmap_mode="r", allow_pickle=False)
    return features


def expect_any_order(features: Half) -> None:
    """Let the system read only what is asked for, not what lies beside it, from now on.

    With `prefetch`, training waits half as long for a disk and reads a third of the bytes.
    """
    mapped = getattr(features, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)


def read_features(features: Half, rows: Rows, views: Rows, *, pinned: bool = False) -> Tensor:
    """Return the features of one view per image, (rows, width), in memory that a GPU copies fast if `pinned`.

    They are read in the order of the file, which a disk reads faster, and few at a time, so that
    memory stays bounded however large the file is.
    """
    order = np.argsort(rows, kind="stable")
    read = torch.empty(len(rows), features.shape[-1], pin_memory=pinned)
    for start in range(0, len(rows), READ_ROWS):
        part = order[start : start + READ_ROWS]
        read.numpy()[part] = features[rows[part], views[part]]
        release(features)
    return read


def prefetch(features: Half, rows: Rows) -> None:
    """Let the system read the features of `rows` from the disk while something else is computed."""
    mapped = getattr(features, "_mmap", None)
    if mapped is None or not hasattr(mmap, "MADV_WILLNEED"):
        return
    length = features[0].nbytes
    for row in np.sort(rows).tolist():
        first = features.offset + row * length  # type: ignore[attr-defined]
        aligned = first - first % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, aligned, first + length - aligned)


def release(features: Half) -> None:
    """Give back the memory of what was read from the map; the system still has it at hand."""
    mapped = getattr(features, "_mmap", None)  # an array in memory has none
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
