"""What training has cost: memory and time."""

import resource
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch


def peak_memory() -> int:
    """Most bytes this process has held so far: of its GPU if it used one, else resident."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss, which on Linux begins with what the parent held.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def largest_peak(records: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the largest peak among the processes that wrote the epochs of a run, if they know it."""
    return max(
        (record["peak_memory"] for record in records if "peak_memory" in record), default=None
    )


def median_epoch_seconds(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of a usual epoch: a pause in one of them does not count.

    `seconds` of a record are those of the process that wrote it, which may have taken the epoch up
    in its midst; the totals know all of it.
    """
    totals = [0.0, *(record["total_seconds"] for record in records)]
    return statistics.median(b - a for a, b in pairwise(totals)) if records else None
