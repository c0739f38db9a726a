"""What the explorer opens: runs, indexes, and folders that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from imsvd.datasets.layouts import is_image_name
from imsvd.datasets.sources import printable
from imsvd.errors import InputError
from imsvd.explorer.explained_run import ExplainedRun, open_run
from imsvd.explorer.opened_index import OpenedIndex, is_index
from imsvd.runs import RunFolder

MOST_LOOKED_AT = 1000
"""Entries of a folder that are looked at; a folder of photographs may have millions."""


class Skipped(NamedTuple):
    """A run or an index inside a folder that could not be opened."""

    path: Path
    reason: str


class Folder(NamedTuple):
    """A folder that was searched for runs and indexes."""

    path: Path
    holds_images: bool


class Places(NamedTuple):
    """What was opened, and what the user should know about the rest."""

    opened: tuple[ExplainedRun | OpenedIndex, ...]
    folders: tuple[Folder, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def record(self) -> dict[str, Any]:
        """Describe folders and what was skipped, for the page."""
        return {
            "folders": [
                {"path": printable(str(folder.path)), "holds_images": folder.holds_images}
                for folder in self.folders
            ],
            "skipped": [
                {"path": printable(str(item.path)), "reason": printable(item.reason)}
                for item in self.skipped
            ],
        }


def open_place(path: str | Path) -> ExplainedRun | OpenedIndex:
    """Open a run folder or an index."""
    return OpenedIndex(path) if is_index(path) else open_run(path)


def open_places(paths: Sequence[ExplainedRun | OpenedIndex | str | Path]) -> Places:
    """Open runs, indexes, and those directly inside other folders; what is open already stays in its place.

    A path that names a run or an index must open. Inside a folder, those that do not open are skipped, so that one
    unfinished run does not hide the others.
    """
    opened: list[ExplainedRun | OpenedIndex] = []
    folders: list[Folder] = []
    skipped: list[Skipped] = []
    for given in paths:
        if isinstance(given, ExplainedRun | OpenedIndex):
            opened.append(given)
            continue
        path = Path(given)
        if not path.is_dir() or _is_place(path):
            opened.append(open_place(path))
            continue
        entries = _entries(path)
        folders.append(Folder(path, any(is_image_name(entry.name) for entry in entries)))
        for entry in filter(_is_place, entries):
            try:
                opened.append(open_place(entry))
            except InputError as error:
                skipped.append(Skipped(entry, str(error)))
    return Places(tuple(opened), tuple(folders), tuple(skipped))


def _is_place(path: Path) -> bool:
    return (
        is_index(path) or RunFolder(path).exists() or RunFolder(path).encoder_description.exists()
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(islice(folder.iterdir(), MOST_LOOKED_AT))
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.") from error
