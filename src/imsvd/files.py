"""Files that are either whole or not there, whatever interrupts their writing."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imsvd.errors import InputError


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds either its old content or all of the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk is full: {path} could not be written ({len(content) / 2**20:.0f} MiB needed); "
                "what was saved before is untouched — free some space and run the same command to resume."
            ) from error
        raise InputError(f"{path} could not be written: {error.strerror}.") from error


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of writes that a kill interrupted; nobody else may be writing."""
    for temporary in folder.glob(".*.tmp"):
        try:
            temporary.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{temporary} could not be removed: {error.strerror}.") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def complete_or_absent(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`; what was written there takes its place at the end.

    If the block fails, `path` is as it was. A folder must not replace anything.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        reason = (
            "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        )
        raise InputError(f"{path} could not be written: {reason or error}.") from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink()


def _sync(path: Path) -> None:
    for file in [path] if path.is_file() else list(path.iterdir()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
