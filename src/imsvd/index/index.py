"""An index of images by their codes: how it is made, asked and changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from imsvd.datasets.sources import PathSource
from imsvd.errors import InputError
from imsvd.evaluation.features import BATCH_SIZE
from imsvd.index import building, statistics, storage
from imsvd.index.contents import Contents
from imsvd.index.duplicates import Duplicates, duplicates
from imsvd.index.encoding import Request, open_parts, read_rows
from imsvd.index.known import read_known
from imsvd.index.names import checked_place, named
from imsvd.index.searching import Matches, search
from imsvd.index.segments import Rows, join
from imsvd.index.storage import Change, Manifest, Root


class Added(NamedTuple):
    """Numbers of images that were added, replaced because they had changed, unchanged and unreadable."""

    added: int
    replaced: int
    unchanged: int
    unreadable: int


class Index(Contents):
    """The codes of many images, in a folder; open one with `Index(path)` or make one with `Index.build`.

    Positions number the images from 0 on. An object sees the index as it was when it was opened or last
    changed through this object.
    """

    @classmethod
    def build(
        cls,
        run: str | Path,
        data: str | Path,
        out: str | Path,
        *,
        split: str = "all",
        features: bool = False,
        console: Console | None = None,
    ) -> Index:
        """Make an index of the images in `data`, see `imsvd.index.building.build`."""
        building.build(run, data, out, split=split, features=features, console=console)
        return cls(out)

    def outliers(self, count: int = 100, **options: Any) -> statistics.RareImages:
        """Return the images whose units are jointly rarest, see `statistics.outliers`."""
        return statistics.outliers(self, count, **options)

    def coverage(self, **options: Any) -> statistics.Gaps:
        """Return units and pairs that are missing or crowded, see `statistics.coverage`."""
        return statistics.coverage(self, **options)

    def select(self, count: int, **options: Any) -> statistics.Plan:
        """Return images to label that represent all others, see `statistics.select`."""
        return statistics.select(self, count, **options)

    def drift(self, other: Index, **options: Any) -> statistics.IndexDrift:
        """Test what moved from this index to another, see `statistics.drift`."""
        return statistics.drift(self, other, **options)

    def add(self, *data: str | Path, split: str = "all", console: Console | None = None) -> Added:
        """Add images: files, folders, archives or names of datasets.

        Images that are in the index already are encoded again only if their file has changed. All
        images appear together at the end; the same call resumes after an interruption.
        """
        console = console or Console(quiet=True)
        self.refresh()
        parts = [part for item in data for part in open_parts(item, split)]
        new = [part.root for part in parts if part.root not in self.manifest.roots]
        roots = (*self.manifest.roots, *dict.fromkeys(new))
        requests, listed = building.requests_for(parts, roots, dict(self.manifest.facets))
        requests = [self._only_changed(request) for request in requests]
        wanted = sum(len(batch) for request in requests for batch in request.batches)
        unchanged = sum(len(part.source) for part in parts) - wanted
        rows = self._encode(requests, roots, listed, console) if wanted else []
        encoded = sum(map(len, rows))
        replaced, same = self.add_rows(join(rows), roots, listed) if encoded else (0, 0)
        return Added(encoded - replaced - same, replaced, unchanged + same, wanted - encoded)

    def _only_changed(self, request: Request) -> Request:
        """Leave out files that have the size and time of those in the index."""
        positions = self.locate(request.places)
        source = request.part.source
        unchanged = {
            number
            for number, position in enumerate(positions.tolist())
            if position >= 0
            and isinstance(source, PathSource)
            and not self.image(position)._replace(path=str(source.path(number))).state()
        }
        left = [number for number in range(len(source)) if number not in unchanged]
        return request._replace(batches=building.batched(left))

    def _encode(
        self,
        requests: Sequence[Request],
        roots: Sequence[Root],
        listed: building.Listed,
        console: Console,
    ) -> list[Rows]:
        keep = self.manifest.features is not None
        batches = [batch for request in requests for batch in request.batches]
        if sum(map(len, batches)) <= BATCH_SIZE:
            known = read_known(self.coder.run, self.coder.key, self.units)
            found = [
                pair for request in requests for pair in read_rows(self.coder, request, keep, known)
            ]
            building.report_unreadable([bad for _, several in found for bad in several], console)
            return [rows for rows, _ in found]
        keys = building.image_keys([request.part for request in requests])
        # Rows that wait refer to roots and values of facets by number.
        numbered = [[root.model_dump() for root in roots], listed]
        chosen = [list(batch) for batch in batches]
        identity = [self.manifest.encoder, keep, *numbered, keys, chosen]
        with building.staging(self.path, "adding", identity) as folder:
            building.encode_parts(folder, self.coder, requests, keep, console)
            return list(building.encoded_parts(folder, self.units))

    def add_rows(
        self, rows: Rows, roots: Sequence[Root], listed: dict[str, tuple[str, ...]]
    ) -> tuple[int, int]:
        """Add encoded images; return how many replaced others and how many were there already."""
        counts = (0, 0)

        def change(before: Change) -> Change:
            nonlocal counts
            self._use(before.before)
            _check_numbers(self.path, before.manifest, roots, listed)
            places = list(zip(rows.facets["root"].tolist(), rows.names, strict=True))
            last = {place: number for number, place in enumerate(places)}
            kept = np.array(sorted(last.values()), dtype=np.int64)
            known = self.locate([places[number] for number in kept])
            same, current = self._compare(known, rows, kept)
            counts = int(((known >= 0) & ~same).sum()), int(same.sum()) + len(rows) - len(kept)
            if current.all():
                return before
            old = known[(known >= 0) & ~current]
            after = before.removing(old).adding(rows.chosen(kept[~current]))
            return after.changing(roots=tuple(roots), facets=listed)

        self._change(change)
        return counts

    def _compare(
        self, known: NDArray[np.int64], rows: Rows, kept: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which images have the content of those at `known`, and which the time of the file too.

        A file that was only touched must get its new time, or it would be taken for a changed one.
        """
        same, current = np.zeros(len(kept), dtype=bool), np.zeros(len(kept), dtype=bool)
        for place, (position, number) in enumerate(zip(known.tolist(), kept, strict=True)):
            if position >= 0:
                image = self.image(position)
                same[place] = image.hash == rows.hashes[number].tobytes()
                current[place] = same[place] and image.modified == rows.modified[number]
        return same, current

    def remove(self, *paths: str | Path) -> int:
        """Remove images by path or name, or all images below a folder; return how many.

        Nothing is removed if one of them is not in the index.
        """
        self.refresh()
        positions: list[int] = []
        for path in paths:
            position = self.find(path)
            found = [position] if position is not None else self._below(path)
            if not found:
                raise InputError(f"{path} is not in {self.path}; nothing was removed.")
            positions += found
        return self.remove_positions(positions)

    def remove_missing(self) -> int:
        """Remove the images whose files no longer exist; return how many."""
        self.refresh()
        gone = [number for number in range(len(self)) if self.image(number).state() == "deleted"]
        return self.remove_positions(gone)

    def remove_positions(self, positions: Sequence[int]) -> int:
        """Remove the images at some positions of this object; return how many."""
        wanted = np.unique(np.array(positions, dtype=np.int64))
        seen = self.manifest

        def change(before: Change) -> Change:
            if before.manifest.segments != seen.segments:
                raise InputError(f"{self.path} was changed meanwhile; run the same command again.")
            return before.removing(wanted)

        if len(wanted):
            self._change(change)
        return len(wanted)

    def _below(self, folder: str | Path) -> list[int]:
        start = os.path.abspath(folder).rstrip("/") + "/"  # noqa: PTH100
        return [number for number, path in enumerate(self.paths) if path.startswith(start)]

    def name(self, unit: str, name: str) -> None:
        """Name a unit such as "12.3", or a variable such as "12", in this index; an empty name removes it."""
        unit = checked_place(unit, self.units)
        self._change(lambda before: before.changing(names=named(before.manifest.names, unit, name)))

    def search(
        self,
        query: str = "",
        *,
        like: str | Path | Sequence[str | Path] = (),
        unlike: str | Path | Sequence[str | Path] = (),
        count: int = 20,
    ) -> Matches:
        """Find images by units and labels, by likeness to others, or both; see `imsvd.index.searching`."""
        return search(self, query, like=_several(like), unlike=_several(unlike), count=count)

    def like(self, image: str | Path, count: int = 20) -> Matches:
        """Find the images most like one of the index or another file."""
        return self.search(like=image, count=count)

    def duplicates(
        self,
        other: Index | None = None,
        *,
        between: tuple[str, str] | None = None,
        within: int | None = None,
        cosine: float | None = None,
        confirm: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Duplicates:
        """Find equal files and edited copies; see `imsvd.index.duplicates`."""
        options: dict[str, Any] = {"within": within, "cosine": cosine, "confirm": confirm}
        return duplicates(self, other, between=between, progress=progress, **options)

    def compact(self) -> None:
        """Write the index anew without removed images and with as few segments as possible."""
        self._change(Change.compacted)

    def _change(self, change: Callable[[Change], Change]) -> None:
        self._use(storage.apply(self.path, change, self._snapshot))


def _check_numbers(
    path: Path, now: Manifest, roots: Sequence[Root], listed: building.Listed
) -> None:
    """Raise if another process has meanwhile given numbers of roots or values to others."""
    pairs: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [(now.roots, tuple(roots))]
    pairs += [(values, listed.get(facet, ())) for facet, values in now.facets.items()]
    if any(own[: len(known)] != known for known, own in pairs):
        raise InputError(f"{path} was changed meanwhile; run the same command again.")


def _several(paths: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    return [paths] if isinstance(paths, str | Path) else paths
