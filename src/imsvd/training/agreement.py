"""What ranks must know alike before they train together."""

from __future__ import annotations

from pathlib import Path

from imsvd.datasets import ImageSource, Quarantine
from imsvd.distributed import gather_lists, rank, together
from imsvd.errors import InputError


def require_same_start(step: int, images: str) -> None:
    """Refuse to begin where ranks would go on from different steps or with other `images`, a hash."""
    if len(set(gather_lists([(step, images)]))) > 1:
        raise InputError(
            "the processes do not see the same checkpoint and images; put --out and the data on a disk "
            "that all machines share."
        )


def shared_quarantine(source: ImageSource, limit: float, path: Path) -> Quarantine:
    """The bad images that `path` lists, known to all ranks; the first one writes."""
    first = rank() == 0
    quarantine = together(lambda: Quarantine(source, limit, path if first else None))
    quarantine.adopt(gather_lists(quarantine.listed))
    return quarantine
