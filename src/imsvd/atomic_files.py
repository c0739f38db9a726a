"""Files and folders that others write piece by piece, seen by their name only when complete."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imsvd.errors import InputError


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
