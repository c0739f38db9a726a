"""What is in an index: its images, their codes, names and files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from imsvd.datasets import UnreadableImage, open_source
from imsvd.datasets.decoding import decode_image
from imsvd.datasets.sources import ImageSource, printable
from imsvd.errors import InputError
from imsvd.index import storage
from imsvd.index.columns import Numbers
from imsvd.index.encoding import Coder, modified_at, place_of
from imsvd.index.known import KnownCodes
from imsvd.index.names import with_names_of
from imsvd.index.segments import COLUMNS, HASH_BYTES, Facts, Segment, full_name, path_key
from imsvd.index.storage import Manifest, Root, Snapshot

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


class Paths(Sequence[str]):
    """Paths of all images of an index, decompressed as they are needed."""

    def __init__(self, index: Contents) -> None:
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


class Contents:
    """An index as it was when it was opened or last changed through this object.

    Positions number the images from 0 on.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._coder: Coder | None = None
        self._snapshot: Snapshot | None = None
        self.refresh()

    def refresh(self) -> None:
        """See the index as it is now."""
        self._use(storage.read_snapshot(self.path, self._snapshot))

    def _use(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.manifest: Manifest = snapshot.manifest
        self.segments: tuple[Segment, ...] = snapshot.segments
        self.starts = np.cumsum([0, *map(len, self.segments)])
        self._codes: Numbers | None = None
        self._names: tuple[dict[str, str], dict[str, str]] | None = None
        self._sources: dict[Root, tuple[ImageSource, dict[bytes, int]]] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}: {len(self):,} images, {len(self.units)} variables)"

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
        return self._all_names()[0]

    @property
    def variable_names(self) -> dict[str, str]:
        """Names of variables such as "12", from the same places."""
        return self._all_names()[1]

    def _all_names(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the names of units, which searches understand, and those of variables."""
        if self._names is None:
            every = with_names_of(self.manifest.run, self.manifest.names)
            variables = {place: name for place, name in every.items() if "." not in place}
            units = {place: name for place, name in every.items() if "." in place}
            self._names = units, variables
        return self._names

    def reread_names(self) -> None:
        """See names given in the run folder since this index was opened."""
        self._names = None

    @property
    def paths(self) -> Paths:
        """Paths of all images."""
        return Paths(self)

    def codes(self) -> Numbers:
        """Return the unit of each variable, (images, variables) uint8, or uint16 above 256 units."""
        if self._codes is None:
            parts = [segment.codes().T for segment in self.segments]
            self._codes = np.concatenate([self._none(), *parts], axis=1).T
            self._codes.flags.writeable = False
        return self._codes

    def confidences(self) -> NDArray[np.float32]:
        """Return the probability of each of these units, (images, variables), to the nearest level."""
        parts = [segment.confidences().T for segment in self.segments]
        return np.concatenate([self._none(np.float32), *parts], axis=1).T

    def _none(self, dtype: DTypeLike = np.uint8) -> NDArray[Any]:
        """Return a column without images for every variable; all images may have been removed."""
        return np.empty((len(self.units), 0), dtype=dtype)

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
        none = np.empty(0, dtype=np.uint32)
        return np.concatenate([none, *(segment.facet(name) for segment in self.segments)])

    def column(self, name: str) -> NDArray[Any]:
        """Return `hashes`, `sizes`, `modified` or `path_keys` of all images, (images, …)."""
        shape = (0, HASH_BYTES) if name == "hashes" else (0,)
        none = np.empty(shape, dtype=COLUMNS[name])
        return np.concatenate([none, *(segment.column(name) for segment in self.segments)])

    def known_codes(self) -> KnownCodes:
        """Return the codes of all images, to be found by their content."""
        levels = np.concatenate([self._none().T, *(each.levels() for each in self.segments)])
        hashes, sizes = self.column("hashes"), self.column("sizes")
        return KnownCodes(hashes, sizes, self.codes(), levels, self.features())

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
            run = self.manifest.run
            if Path(run).is_absolute() and not Path(run).exists():
                raise InputError(
                    f"{run}, the run that {self.path} was made with, does not exist; if it was moved, say "
                    "where it is with --run, or `use_run` in Python."
                )
            self.use_run(run)
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

    @property
    def num_bytes(self) -> int:
        """Size of all files of the index."""
        return sum(path.stat().st_size for path in self.path.iterdir())
