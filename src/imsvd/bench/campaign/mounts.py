"""A small file system in memory over the working folder: it can be filled up or made read-only."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE = 20.0
LARGE = 64 * 2**20
"""Bytes that are enough for every command of a campaign."""


def obstacle() -> str:
    """Return why file systems cannot be mounted here, or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder)):
                return ""
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            return f"tmpfs cannot be mounted here ({reason.strip()})"


@contextmanager
def mounted(folder: Path, size: int = LARGE) -> Iterator[None]:
    """Mount a file system of `size` bytes over `folder` for a while."""
    _mount("-t", "tmpfs", "-o", f"size={size}", "imsvd-campaign", str(folder))
    try:
        yield
    finally:
        _unmount(folder)


def unmount_leftovers(folder: Path) -> None:
    """Unmount what a campaign that was killed has left mounted over `folder`."""
    while folder.is_mount():
        _unmount(folder)


def remount(folder: Path, *options: str) -> None:
    """Change the options of what is mounted over `folder`, as soon as killed processes have closed its files."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return _mount("-o", ",".join(("remount", *options)), str(folder))
        except subprocess.CalledProcessError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)


def _unmount(folder: Path) -> None:
    # Lazily: a killed process may take a moment to close its files.
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True, text=True)
