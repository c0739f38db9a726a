"""`results.jsonl` of a run: one line per evaluation, only ever appended to."""

import errno
import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from imsvd.errors import InputError

_logger = logging.getLogger(__name__)

_FILE_NAME = "results.jsonl"


def append_result(
    run: Path,
    protocol: str,
    metrics: Mapping[str, float],
    *,
    data: str,
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """Append one evaluation to `run`/results.jsonl, on disk when this returns.

    Args:
        run: the run folder.
        protocol: what was measured, such as "knn".
        metrics: the numbers; finite.
        data: what it was measured on, as the user named it.
        details: what else is needed to understand or repeat it, such as the settings.

    Returns:
        The record as written, with the time and the version of this package.
    """
    record = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version("imsvd"),
        "protocol": protocol,
        "data": data,
        "metrics": dict(metrics),
        "details": dict(details),
    }
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    path = run / _FILE_NAME
    try:
        _append(path, line.encode())
    except OSError as error:
        raise InputError(f"The result cannot be written to {path}: {error.strerror}.") from error
    return record


def read_results(run: Path) -> list[dict[str, Any]]:
    """All evaluations recorded in `run`, oldest first; empty if there are none.

    A line that an interrupted write left incomplete is passed over, with a warning in the log.
    """
    path = run / _FILE_NAME
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif line.strip():
            _logger.warning("%s, line %d is incomplete and was passed over", path, number)
    return records


def _append(path: Path, line: bytes) -> None:
    """Append `line` in a single write, so that a reader or second writer never sees a part."""
    with path.open("a+b", buffering=0) as file:
        if _ends_inside_a_line(path):
            line = b"\n" + line
        written = file.write(line)
        os.fsync(file.fileno())
    if written != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _ends_inside_a_line(path: Path) -> bool:
    """Whether an interrupted write left a last line that the next one must not join."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
