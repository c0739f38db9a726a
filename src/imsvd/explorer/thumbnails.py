"""Thumbnails, kept on disk where making them again would cost more than reading them."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

from imsvd.errors import InputError
from imsvd.explorer.explained_run import ExplainedRun
from imsvd.explorer.pictures import as_jpeg, seen_square
from imsvd.files import write_atomically

SIZES = (64, 128, 256)
MAX_BYTES = 256 * 1024**2
CHEAP_PIXELS = 128 * 128
"""Images up to this size are decoded faster than a file is opened."""

_logger = logging.getLogger(__name__)


class Thumbnails:
    """The thumbnails of one run, below its folder of explanations, in bounded space."""

    def __init__(self, run: ExplainedRun, max_bytes: int = MAX_BYTES) -> None:
        self._run = run
        self._root = run.folder / "thumbnails"
        self._folder = self._root / run.key
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._may_write = True

    def jpeg(self, image: int, size: int) -> bytes:
        """The thumbnail of an image, `size` pixels square."""
        self._run.row(image)
        path = self._folder / f"{size}-{image}.jpg"
        try:
            return path.read_bytes()
        except OSError:
            pass
        picture = self._run.read(image)
        content = as_jpeg(seen_square(picture, self._run.description.size, size))
        if picture.shape[-2] * picture.shape[-1] > CHEAP_PIXELS:
            self._keep(path, content)
        return content

    def _keep(self, path: Path, content: bytes) -> None:
        with self._lock:
            if not self._may_write:
                return
            try:
                self._make_room(len(content))
                write_atomically(path, content)
                self._bytes = (self._bytes or 0) + len(content)
            except (InputError, OSError) as error:
                # A full or read-only disk costs time, not thumbnails.
                self._may_write = False
                _logger.warning("thumbnails are not kept: %s", error)

    def _make_room(self, wanted: int) -> None:
        """Delete thumbnails of other explanations, and the oldest when there are too many."""
        if self._bytes is None:
            for other in self._root.glob("*"):
                if other != self._folder:
                    shutil.rmtree(other, ignore_errors=True)
            self._bytes = sum(file.stat().st_size for file in self._folder.glob("*"))
        if self._bytes + wanted <= self._max_bytes:
            return
        kept = sorted(
            (
                (file.stat().st_mtime_ns, file.stat().st_size, file)
                for file in self._folder.glob("*")
            ),
            reverse=True,
        )
        self._bytes = 0
        for _, size, file in kept:
            # Well below the limit, so that this does not happen at every thumbnail.
            if self._bytes + size <= 0.8 * self._max_bytes - wanted:
                self._bytes += size
            else:
                file.unlink(missing_ok=True)
