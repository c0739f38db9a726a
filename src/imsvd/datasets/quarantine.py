"""Bad pictures among good ones: replaced by a rule, listed once, and too many stop the run."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from imsvd.datasets.source import ImageSource, UnreadableImage
from imsvd.errors import InputError


class BadImage(NamedTuple):
    """A picture that could not be read, and why."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    identity: str
    reason: str


def read_or_replace(source: ImageSource, index: int) -> tuple[Tensor, int, list[BadImage]]:
    """Read a picture, or the next readable one after it, wrapping round at the end.

    The replacement depends on nothing but the data, so that workers, ranks and resumed runs agree.

    Returns:
        The picture, uint8 (3, height, width); the index actually read; the bad ones met.
    """
    bad: list[BadImage] = []
    for step in range(len(source)):
        candidate = (index + step) % len(source)
        try:
            return source.read(candidate), candidate, bad
        except UnreadableImage as error:
            bad.append(BadImage(candidate, error.identity, error.reason))
    raise InputError(
        f"none of the {len(source):,} images can be read; "
        f"the first is {bad[0].identity} ({bad[0].reason})"
    )


class Quarantine:
    """The list of bad pictures, kept in the main process and in `path`, one JSON object a line.

    A list that exists is taken up again, less the pictures that have been repaired since. More
    than `limit` (a share of the source) raise `InputError`.
    """

    def __init__(self, source: ImageSource, limit: float = 0.01, path: Path | None = None) -> None:
        self._source = source
        self._limit = limit
        self._path = path
        self._bad: dict[int, BadImage] = {}
        if path is not None and path.exists():
            self._bad = {bad.index: bad for bad in _listed(path) if _is_still_bad(source, bad)}
            self._enforce_limit()

    @property
    def count(self) -> int:
        """How many distinct pictures are known to be bad."""
        return len(self._bad)

    @property
    def listed(self) -> list[BadImage]:
        """Those pictures."""
        return list(self._bad.values())

    def adopt(self, bad: Iterable[BadImage]) -> None:
        """Take over what another process has listed; raise `InputError` when there are too many."""
        self._bad.update({item.index: item for item in bad})
        self._enforce_limit()

    def report(self, bad: Iterable[BadImage]) -> None:
        """List those not yet listed; raise `InputError` when there are too many in all."""
        new = {item.index: item for item in bad if item.index not in self._bad}
        if not new:
            return
        self._bad.update(new)
        if self._path is not None:
            _append(self._path, new.values())
        self._enforce_limit()

    def replacements(self) -> Tensor:
        """For every index the one `read_or_replace` reads, given the bad ones known, (n,) int64.

        After a pass over all images, `labels[quarantine.replacements()]` are the labels of the
        pictures that were really seen.
        """
        indices = torch.arange(len(self._source))
        for index in sorted(self._bad, reverse=True):
            replacement = (index + 1) % len(self._source)
            while replacement in self._bad and replacement != index:
                replacement = (replacement + 1) % len(self._source)
            indices[index] = replacement
        return indices

    def _enforce_limit(self) -> None:
        total = len(self._source)
        if self.count <= self._limit * total:
            return
        first = next(iter(self._bad.values()))
        listed = f"; all are listed in {self._path}" if self._path is not None else ""
        raise InputError(
            f"{self.count:,} of {total:,} images ({self.count / total:.1%}, more than the "
            f"{self._limit:.1%} allowed) cannot be read, the first being {first.identity} "
            f"({first.reason}){listed}"
        )


def _listed(path: Path) -> list[BadImage]:
    """The entries of a list; a last line torn by a kill is passed over."""
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            entries.append(BadImage(int(entry["index"]), entry["identity"], entry["reason"]))
        except (ValueError, KeyError, TypeError):
            continue
    return entries


def _is_still_bad(source: ImageSource, bad: BadImage) -> bool:
    # The identity is compared because the data may have changed since the list was written.
    if not 0 <= bad.index < len(source) or source.identity(bad.index) != bad.identity:
        return False
    try:
        source.read(bad.index)
    except UnreadableImage:
        return True
    return False


def _append(path: Path, entries: Iterable[BadImage]) -> None:
    lines = "".join(json.dumps(entry._asdict()) + "\n" for entry in entries)
    with path.open("a+b") as file:
        if file.tell() > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":  # after a torn line, start a fresh one
                lines = "\n" + lines
        file.write(lines.encode())
