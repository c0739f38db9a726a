"""A segment: images that were added together, in one safetensors file that never changes.

| tensor | shape and type | content |
|---|---|---|
| `codes` | (planes, ceil(n / 8)) uint8 | bit planes of all variables, one after the other |
| `confidences` | (6 × variables, ceil(n / 8)) uint8 | bit planes of the confidence levels, see `columns` |
| `hashes` | (n, 12) uint8 | BLAKE2b of the image file, or of the pixels where there is no file |
| `sizes` | (n,) uint32 | size of the image file; 0 where there is none |
| `modified` | (n,) uint64 | its modification time in nanoseconds since 1970; 0 where there is none |
| `path_keys` | (n,) uint32 | CRC-32 of root and name, by which an image is found |
| `names` | bytes | names in blocks of 256, joined by NUL, each block compressed by zlib |
| `name_ends` | (blocks,) uint64 | where each block ends |
| `facet.NAME` | (planes, ceil(n / 8)) uint8 | bit planes of a label or attribute; 0 is unknown |
| `features` | (n, width) float16 | features of the backbone, if they are kept |

The facet `root` says to which folder or dataset a name is relative; the manifest lists the values.
"""

from __future__ import annotations

import itertools
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from imsvd.errors import InputError
from imsvd.index.columns import (
    LEVEL_PLANES,
    Bytes,
    Numbers,
    confidence_at,
    number_at,
    pack,
    planes_needed,
    unpack,
)

HASH_BYTES = 12
NAMES_PER_BLOCK = 256
_MOST_NAME_BYTES = 2**24
_DTYPES = {"U8": np.uint8, "U32": np.uint32, "U64": np.uint64, "F16": np.float16}
COLUMNS = {"hashes": np.uint8, "sizes": np.uint32, "modified": np.uint64, "path_keys": np.uint32}
"""Types of what is kept of every image in rows."""
_REQUIRED = (
    "codes",
    "confidences",
    *COLUMNS,
    "names",
    "name_ends",
)


@dataclass(frozen=True)
class Rows:
    """Images in memory, before they are written."""

    codes: Numbers
    """(n, variables)."""
    levels: Bytes
    """Confidence levels, (n, variables)."""
    hashes: Bytes
    """(n, 12)."""
    sizes: NDArray[np.uint32]
    modified: NDArray[np.uint64]
    names: Sequence[bytes]
    facets: Mapping[str, NDArray[np.uint32]]
    """Values by facet, (n,) each; 0 is unknown."""
    features: NDArray[np.float16] | None = field(default=None)

    def __len__(self) -> int:
        return len(self.names)

    def chosen(self, rows: NDArray[np.int64]) -> Rows:
        """Return some of the images."""
        return Rows(
            self.codes[rows],
            self.levels[rows],
            self.hashes[rows],
            self.sizes[rows],
            self.modified[rows],
            [self.names[row] for row in rows],
            {name: values[rows] for name, values in self.facets.items()},
            None if self.features is None else self.features[rows],
        )


def join(parts: Sequence[Rows]) -> Rows:
    """Return the images of several parts as one."""
    if len(parts) == 1:
        return parts[0]
    facets = {name: None for part in parts for name in part.facets}
    unknown = [np.zeros(len(part), dtype=np.uint32) for part in parts]
    kept = [part.features for part in parts if part.features is not None]
    return Rows(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.levels for part in parts]),
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.modified for part in parts]),
        [name for part in parts for name in part.names],
        {
            name: np.concatenate(
                [part.facets.get(name, zero) for part, zero in zip(parts, unknown, strict=True)]
            )
            for name in facets
        },
        np.concatenate(kept) if kept else None,
    )


def path_key(root: int, name: bytes) -> int:
    """Return the number by which an image is found among many."""
    return zlib.crc32(name, root)


def encode(rows: Rows, units: Sequence[int], metadata: Mapping[str, str]) -> bytes:
    """Return the content of a segment file."""
    blocks = [
        zlib.compress(b"\0".join(rows.names[start : start + NAMES_PER_BLOCK]), 6)
        for start in range(0, len(rows), NAMES_PER_BLOCK)
    ]
    columns = np.ascontiguousarray(rows.codes.T), np.ascontiguousarray(rows.levels.T)
    roots = rows.facets["root"].tolist()
    tensors: dict[str, NDArray[Any]] = {
        "codes": np.concatenate(
            [
                pack(column, planes_needed(count))
                for column, count in zip(columns[0], units, strict=True)
            ]
        ),
        "confidences": np.concatenate([pack(column, LEVEL_PLANES) for column in columns[1]]),
        "hashes": rows.hashes,
        "sizes": rows.sizes,
        "modified": rows.modified,
        "path_keys": np.array(
            [path_key(root, name) for root, name in zip(roots, rows.names, strict=True)],
            dtype=np.uint32,
        ),
        "names": np.frombuffer(b"".join(blocks), dtype=np.uint8),
        "name_ends": np.cumsum([len(block) for block in blocks], dtype=np.uint64),
    }
    for name, values in rows.facets.items():
        tensors[f"facet.{name}"] = pack(values, planes_needed(int(values.max(initial=0)) + 1))
    if rows.features is not None:
        tensors["features"] = rows.features
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    return save(contiguous, {**metadata, "images": str(len(rows))})


class Image(NamedTuple):
    """What an index knows of one image's file."""

    root: int
    name: bytes
    hash: bytes
    size: int
    modified: int


class Facts(NamedTuple):
    """What an index knows of one image's content."""

    codes: Sequence[int]
    levels: Sequence[int]
    facets: Mapping[str, int]


class Segment:
    """A segment file, memory-mapped.

    Args:
        path: the file.
        units: number of units of every variable.
        size: its number of bytes, as the manifest has it.
        removed: images in it that no longer count, sorted.
    """

    def __init__(
        self, path: Path, units: Sequence[int], size: int, removed: NDArray[np.int64] | None = None
    ) -> None:
        self.path, self.units = path, tuple(units)
        self._tensors, metadata = _map(path, size)
        self.count = _whole_number(metadata.get("images"))
        self.id, self.encoder = metadata.get("id"), metadata.get("encoder")
        needed = [planes_needed(number) for number in units]
        self._starts = [0, *itertools.accumulate(needed)]
        self.removed = np.empty(0, dtype=np.int64) if removed is None else removed
        self.live: NDArray[np.int64] | None = None
        if len(self.removed):
            self.live = np.setdiff1d(np.arange(self.count), self.removed, assume_unique=True)
        self._check()

    def _check(self) -> None:
        octets = -(-self.count // 8)
        wanted: dict[str, tuple[int, ...]] = {
            "codes": (self._starts[-1], octets),
            "confidences": (LEVEL_PLANES * len(self.units), octets),
            "hashes": (self.count, HASH_BYTES),
            "sizes": (self.count,),
            "modified": (self.count,),
            "path_keys": (self.count,),
            "name_ends": (-(-self.count // NAMES_PER_BLOCK),),
        }
        for name, shape in wanted.items():
            if self._tensors[name].shape != shape:
                raise InputError(
                    f"{self.path} does not fit its index: {name} has shape {self._tensors[name].shape}, "
                    f"not {shape}; restore the file from a copy or build the index again."
                )

    def __len__(self) -> int:
        """Return how many images count."""
        return self.count if self.live is None else len(self.live)

    def living(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of `values` (count, …) that belong to images that count."""
        return values if self.live is None else values[self.live]

    def counting(self) -> Bytes:
        """Return the images that count as a set, (ceil(count / 8),)."""
        rows = np.ones(self.count, dtype=np.uint8)
        rows[self.removed] = 0
        return np.packbits(rows, bitorder="little")

    def unit_planes(self, variable: int) -> Bytes:
        """Return the bit planes of a variable."""
        planes: Bytes = self._tensors["codes"][self._starts[variable] : self._starts[variable + 1]]
        return planes

    def level_planes(self, variable: int) -> Bytes:
        """Return the bit planes of a variable's confidence level."""
        first = LEVEL_PLANES * variable
        planes: Bytes = self._tensors["confidences"][first : first + LEVEL_PLANES]
        return planes

    def facet_planes(self, name: str) -> Bytes | None:
        """Return the bit planes of a facet, or None if no image here has a value."""
        return self._tensors.get(f"facet.{name}")

    @property
    def facet_names(self) -> list[str]:
        """Names of the facets of images here."""
        prefix = "facet."
        return [name.removeprefix(prefix) for name in self._tensors if name.startswith(prefix)]

    def codes(self) -> Numbers:
        """Return the unit of each variable, (images, variables), uint8 or uint16, column by column."""
        dtype = np.uint8 if max(self.units) <= 256 else np.uint16
        columns = np.empty((len(self.units), len(self)), dtype=dtype)
        for variable, column in enumerate(columns):
            column[:] = self.living(unpack(self.unit_planes(variable), self.count))
        return columns.T

    def levels(self) -> Bytes:
        """Return the confidence level of each variable, (images, variables)."""
        columns = np.empty((len(self.units), len(self)), dtype=np.uint8)
        for variable, column in enumerate(columns):
            column[:] = self.living(unpack(self.level_planes(variable), self.count))
        return columns.T

    def confidences(self) -> NDArray[np.float32]:
        """Return the confidence of each variable, (images, variables)."""
        return confidence_at(self.levels())

    def facet(self, name: str) -> NDArray[np.uint32]:
        """Return the value of a facet, (images,); 0 is unknown."""
        planes = self.facet_planes(name)
        if planes is None:
            return np.zeros(len(self), dtype=np.uint32)
        return self.living(unpack(planes, self.count)).astype(np.uint32)

    def column(self, name: str) -> NDArray[Any]:
        """Return `hashes`, `sizes`, `modified` or `path_keys`, (images, …)."""
        return self.living(self._tensors[name])

    def features(self) -> NDArray[np.float16] | None:
        """Return the features, (images, width), mapped unless images were removed; None if not kept."""
        kept = self._tensors.get("features")
        return None if kept is None else self.living(kept)

    def place(self, position: int) -> int:
        """Return the row of the image at `position` among those that count."""
        return position if self.live is None else int(self.live[position])

    def name(self, position: int) -> bytes:
        """Return the name of an image below its root."""
        row = self.place(position)
        name: bytes = self._names(row // NAMES_PER_BLOCK)[row % NAMES_PER_BLOCK]
        return name

    @cached_property
    def _names(self) -> Any:
        # One cache for each segment, gone with it.
        return lru_cache(maxsize=64)(self._block)

    def _block(self, number: int) -> list[bytes]:
        ends = self._tensors["name_ends"]
        start = int(ends[number - 1]) if number else 0
        packed = self._tensors["names"][start : int(ends[number])].tobytes()
        try:
            names = zlib.decompressobj().decompress(packed, _MOST_NAME_BYTES).split(b"\0")
        except zlib.error as error:
            raise InputError(damaged(self.path)) from error
        if len(names) != min(NAMES_PER_BLOCK, self.count - number * NAMES_PER_BLOCK):
            raise InputError(damaged(self.path))
        return names

    def image(self, position: int) -> Image:
        """Return what is known of an image's file."""
        row = self.place(position)
        root = self.facet_planes("root")
        assert root is not None
        return Image(
            number_at(root, row),
            self.name(position),
            self._tensors["hashes"][row].tobytes(),
            int(self._tensors["sizes"][row]),
            int(self._tensors["modified"][row]),
        )

    def facts(self, position: int) -> Facts:
        """Return units, confidence levels and facets of an image."""
        row = self.place(position)
        first = LEVEL_PLANES * np.arange(len(self.units))
        facets = {name: self.facet_planes(name) for name in self.facet_names}
        return Facts(
            self._numbers("codes", row, np.array(self._starts[:-1])),
            self._numbers("confidences", row, first),
            {name: number_at(planes, row) for name, planes in facets.items() if planes is not None},
        )

    def _numbers(self, tensor: str, row: int, starts: NDArray[np.int64]) -> list[int]:
        """Return the numbers of one image whose planes begin at `starts`, from one look at all planes."""
        bits = (self._tensors[tensor][:, row // 8] >> (row % 8) & 1).astype(np.int64)
        places = np.arange(len(bits)) - np.repeat(starts, np.diff([*starts, len(bits)]))
        found: list[int] = np.add.reduceat(bits << places, starts).tolist()
        return found

    def rows(self) -> Rows:
        """Return all images that count, in memory."""
        features = self.features()
        return Rows(
            self.codes(),
            self.levels(),
            self.column("hashes"),
            self.column("sizes"),
            self.column("modified"),
            [self.name(position) for position in range(len(self))],
            {name: self.facet(name) for name in self.facet_names},
            None if features is None else np.asarray(features),
        )


def damaged(path: Path) -> str:
    """Return the sentence for a file whose content makes no sense."""
    return f"{path} is damaged; restore it from a copy or build the index again."


def _whole_number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _map(path: Path, size: int) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors of a safetensors file without reading them, and its metadata."""
    try:
        found = path.stat().st_size
        if found != size:
            raise InputError(
                f"{path} has {found:,} bytes, but its index says {size:,}: it is truncated or from elsewhere; "
                "restore it from a copy or build the index again."
            )
        with path.open("rb") as file:
            content = np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), dtype=np.uint8)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be opened ({error}).") from error
    try:
        length = int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8 : 8 + length].tobytes())
        metadata = header.pop("__metadata__")
        tensors = {name: _tensor(content, 8 + length, entry) for name, entry in header.items()}
        missing = [name for name in (*_REQUIRED, "facet.root") if name not in tensors]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(damaged(path)) from error
    if missing:
        raise InputError(f"{path} is not a segment of an index: it has no {missing[0]}.")
    return tensors, metadata


def _tensor(content: NDArray[np.uint8], base: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    start, stop = entry["data_offsets"]
    if not 0 <= start <= stop <= len(content) - base:
        raise ValueError("outside the file")
    view = content[base + start : base + stop]
    if (base + start) % np.dtype(_DTYPES[entry["dtype"]]).itemsize:
        view = view.copy()
    return view.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])


def full_name(folder: str, name: bytes) -> str:
    """Return the path of an image below a folder."""
    return os.path.join(folder, os.fsdecode(name))  # noqa: PTH118 - strings, of which there may be millions
