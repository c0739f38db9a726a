"""An index of images by their codes: what is in it, and how it changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from imsvd.datasets import UnreadableImage, open_source
from imsvd.datasets.decoding import decode_image
from imsvd.datasets.sources import ImageSource, PathSource, printable
from imsvd.errors import InputError
from imsvd.evaluation.features import BATCH_SIZE
from imsvd.index import building, statistics, storage
from imsvd.index.columns import Numbers
from imsvd.index.duplicates import Duplicates, duplicates
from imsvd.index.encoding import Coder, Request, modified_at, open_parts, place_of, read_rows
from imsvd.index.names import named, parse_unit, read_names
from imsvd.index.searching import Matches, search
from imsvd.index.segments import Facts, Rows, Segment, full_name, join, path_key
from imsvd.index.storage import Change, Manifest, Root, Snapshot

_FEW = 64
"""Up to this many paths are looked up one by one."""


class IndexedImage(NamedTuple):
    """What an index knows of one image.

    Attributes:
        position: its position in the index; changes when images before it are removed.
        path: path of its file, or its name after that of its archive or dataset.
        is_file: whether `path` is the path of a file.
        size: bytes of the file when it was encoded; 0 if there is none.
        modified: when it had been changed last, in nanoseconds since 1970; 0 if there is no file.
        hash: hash of its content.
    """

    position: int
    path: str
    is_file: bool
    size: int
    modified: int
    hash: bytes

    def state(self) -> str:
        """Return "deleted" or "changed" if the file is no longer what was encoded, or else ""."""
        if not self.is_file:
            return ""
        try:
            status = Path(self.path).stat()
        except OSError:
            return "deleted"
        same = (status.st_size, modified_at(self.path)) == (self.size, self.modified)
        return "" if same else "changed"


class Added(NamedTuple):
    """Numbers of images that were added, replaced because they had changed, unchanged and unreadable."""

    added: int
    replaced: int
    unchanged: int
    unreadable: int


class Paths(Sequence[str]):
    """Paths of all images of an index, decompressed as they are needed."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return [self[number] for number in range(*position.indices(len(self)))]
        return self._index.image(position).path


class Index:
    """The codes of many images, in a folder; open one with `Index(path)` or make one with `Index.build`.

    Positions number the images from 0 on. An object sees the index as it was when it was opened or last
    changed through this object.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._coder: Coder | None = None
        self.refresh()

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

    def refresh(self) -> None:
        """See the index as it is now."""
        self._use(storage.read_snapshot(self.path))

    def _use(self, snapshot: Snapshot) -> None:
        self.manifest: Manifest = snapshot.manifest
        self.segments: tuple[Segment, ...] = snapshot.segments
        self.starts = np.cumsum([0, *map(len, self.segments)])
        self._codes: Numbers | None = None
        self._names: dict[str, str] | None = None
        self._sources: dict[Root, tuple[ImageSource, dict[bytes, int]]] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}: {len(self):,} images, {len(self.units)} variables)"

    @property
    def units(self) -> tuple[int, ...]:
        """Number of units of every variable."""
        return self.manifest.units

    @property
    def facets(self) -> dict[str, tuple[str, ...]]:
        """Names of the values of labels and attributes, from value 1 on."""
        return dict(self.manifest.facets)

    @property
    def names(self) -> dict[str, str]:
        """Names of units such as "12.3", from the index and, if it is still there, from its run folder."""
        if self._names is None:
            self._names = {**self.manifest.names, **read_names(self.manifest.run)}
        return self._names

    @property
    def paths(self) -> Paths:
        """Paths of all images."""
        return Paths(self)

    def codes(self) -> Numbers:
        """Return the unit of each variable, (images, variables) uint8, or uint16 above 256 units."""
        if self._codes is None:
            parts = [segment.codes().T for segment in self.segments]
            self._codes = np.concatenate(parts, axis=1).T
            self._codes.flags.writeable = False
        return self._codes

    def confidences(self) -> NDArray[np.float32]:
        """Return the probability of each of these units, (images, variables), to the nearest level."""
        return np.concatenate([segment.confidences().T for segment in self.segments], axis=1).T

    def features(self) -> NDArray[np.float16] | None:
        """Return the features of all images, (images, width), or None if they were not kept."""
        blocks = list(self.feature_blocks())
        if not blocks:
            return None
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def feature_blocks(self) -> Iterator[NDArray[np.float16]]:
        """Yield the features of all images in blocks that are mapped, not read; none if not kept."""
        for segment in self.segments:
            block = segment.features()
            if block is not None:
                yield block

    def features_at(self, positions: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the kept features of some images, (len(positions), width)."""
        assert self.manifest.features is not None
        found = np.empty((len(positions), self.manifest.features), dtype=np.float16)
        for start, block in zip(self.starts, self.feature_blocks(), strict=False):
            inside = (positions >= start) & (positions < start + len(block))
            found[inside] = block[positions[inside] - start]
        return found

    def facet(self, name: str) -> NDArray[np.uint32]:
        """Return the value of a label or attribute, (images,): 0 is unknown, others count from 1."""
        return np.concatenate([segment.facet(name) for segment in self.segments])

    def column(self, name: str) -> NDArray[Any]:
        """Return `hashes`, `sizes`, `modified` or `path_keys` of all images, (images, …)."""
        return np.concatenate([segment.column(name) for segment in self.segments])

    def image(self, position: int) -> IndexedImage:
        """Return what is known of one image."""
        if not -len(self) <= position < len(self):
            raise IndexError(f"image {position} of an index of {len(self)}")
        position %= len(self)
        segment, place = self._segment_of(position)
        image = segment.image(place)
        root = self.manifest.roots[image.root - 1]
        path = os.path.normpath(full_name(root.folder or root.data, image.name))
        return IndexedImage(
            position, path, bool(root.folder), image.size, image.modified, image.hash
        )

    def find(self, path: str | Path) -> int | None:
        """Return the position of an image by its path or its name; None if it is not in the index."""
        roots = self.manifest.roots
        text = os.fspath(path)
        places = {(number, os.fsencode(text)) for number in range(1, len(roots) + 1)}
        places |= {
            (number, os.fsencode(text).removeprefix(os.fsencode(root.data) + b"/"))
            for number, root in enumerate(roots, start=1)
            if not root.folder
        }
        for whole in (os.path.abspath(text), os.path.realpath(text)):  # noqa: PTH100
            nearest = place_of(whole, roots)
            places |= {nearest} if nearest else set()
        found = self.locate(sorted(places, reverse=True))
        return next((int(position) for position in found if position >= 0), None)

    def locate(self, places: Sequence[tuple[int, bytes]]) -> NDArray[np.int64]:
        """Return the position of the image at each root and name, -1 if there is none."""
        found = np.full(len(places), -1, dtype=np.int64)
        if not places or not len(self):
            return found
        keys = self.column("path_keys")
        wanted = np.array([path_key(*place) for place in places], dtype=np.uint32)
        if len(places) > _FEW:
            order = np.argsort(keys, kind="stable")
            firsts = np.searchsorted(keys[order], wanted, side="left")
            lasts = np.searchsorted(keys[order], wanted, side="right")
            candidates = [order[first:last] for first, last in zip(firsts, lasts, strict=True)]
        else:
            candidates = [np.flatnonzero(keys == key) for key in wanted]
        for number, (place, positions) in enumerate(zip(places, candidates, strict=True)):
            for position in positions.tolist():
                if self._place(position) == place:
                    found[number] = position
        return found

    def _place(self, position: int) -> tuple[int, bytes]:
        segment, place = self._segment_of(position)
        image = segment.image(place)
        return image.root, image.name

    def _segment_of(self, position: int) -> tuple[Segment, int]:
        number = int(np.searchsorted(self.starts, position, side="right")) - 1
        return self.segments[number], position - int(self.starts[number])

    def facts(self, position: int) -> Facts:
        """Return units, confidence levels and facets of one image."""
        segment, place = self._segment_of(position)
        return segment.facts(place)

    def read(self, position: int) -> Tensor:
        """Return an image, uint8 (3, height, width) RGB; raises `UnreadableImage`."""
        image = self.image(position)
        if image.is_file:
            return decode_image(Path(image.path), printable(image.path))
        number, name = self._place(position)
        root = self.manifest.roots[number - 1]
        source, places = self._source(root)
        if name not in places:
            raise UnreadableImage(image.path, f"no longer in {root.data}")
        return source.read(places[name])

    def _source(self, root: Root) -> tuple[ImageSource, dict[bytes, int]]:
        """Return an archive or dataset, opened once, and where each name is in it."""
        if root not in self._sources:
            source = open_source(root.data, "test" if root.split == "test" else "train")
            places = {source.identity(place).encode(): place for place in range(len(source))}
            self._sources[root] = source, places
        return self._sources[root]

    @property
    def coder(self) -> Coder:
        """The encoder that the index was made with, opened when it is first needed."""
        if self._coder is None:
            self.use_run(self.manifest.run)
            assert self._coder is not None
        return self._coder

    def use_run(self, run: str | Path) -> None:
        """Use another copy of the run that the index was made with."""
        coder = Coder(run)
        if coder.key != self.manifest.encoder:
            raise InputError(
                f"{self.path} was made with another encoder than the one that {run} has now; its codes do "
                f"not compare: build a new index with `imsvd index {run} DATA --out FOLDER`."
            )
        self._coder = coder

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
        rows = self._encode(requests, console) if wanted else []
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

    def _encode(self, requests: Sequence[Request], console: Console) -> list[Rows]:
        keep = self.manifest.features is not None
        batches = [batch for request in requests for batch in request.batches]
        if sum(map(len, batches)) <= BATCH_SIZE:
            found = [pair for request in requests for pair in read_rows(self.coder, request, keep)]
            building.report_unreadable([bad for _, several in found for bad in several], console)
            return [rows for rows, _ in found]
        keys = building.image_keys([request.part for request in requests])
        identity = [self.manifest.encoder, keep, keys, [list(batch) for batch in batches]]
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
            self._use(Snapshot(before.manifest, before.segments))
            if tuple(roots[: len(before.manifest.roots)]) != before.manifest.roots:
                raise InputError(f"{self.path} was changed meanwhile; run the same command again.")
            places = list(zip(rows.facets["root"].tolist(), rows.names, strict=True))
            last = {place: number for number, place in enumerate(places)}
            kept = np.array(sorted(last.values()), dtype=np.int64)
            known = self.locate([places[number] for number in kept])
            same = np.array(
                [
                    position >= 0 and self.image(position).hash == rows.hashes[number].tobytes()
                    for position, number in zip(known.tolist(), kept, strict=True)
                ],
                dtype=bool,
            )
            old = known[(known >= 0) & ~same]
            counts = len(old), int(same.sum()) + len(rows) - len(kept)
            if same.all():
                return before
            after = before.removing(old).adding(rows.chosen(kept[~same]))
            return after.changing(roots=tuple(roots), facets=listed)

        storage.apply(self.path, change)
        self.refresh()
        return counts

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
            storage.apply(self.path, change)
            self.refresh()
        return len(wanted)

    def _below(self, folder: str | Path) -> list[int]:
        start = os.path.abspath(folder).rstrip("/") + "/"  # noqa: PTH100
        return [number for number, path in enumerate(self.paths) if path.startswith(start)]

    def name(self, unit: str, name: str) -> None:
        """Name a unit such as "12.3" in this index; an empty name removes it."""
        parse_unit(unit, self.units)
        storage.apply(
            self.path,
            lambda before: before.changing(names=named(before.manifest.names, unit, name)),
        )
        self.refresh()

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
        storage.apply(self.path, Change.compacted)
        self.refresh()

    @property
    def num_bytes(self) -> int:
        """Size of all files of the index."""
        return sum(path.stat().st_size for path in self.path.iterdir())


def _several(paths: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    return [paths] if isinstance(paths, str | Path) else paths
