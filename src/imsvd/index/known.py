"""Codes of images that were encoded before, found again by their content.

`imsvd explain` writes those of its pass to the run folder. `imsvd index` and `imsvd add` take them from
there, and `imsvd codes --index` from an index, in place of encoding the same images again. An image is the
same if size and hash of its content are equal, wherever its file is.

| tensor | shape and type | content |
|---|---|---|
| `hashes` | (n, 12) uint8 | BLAKE2b of the image file, or of the pixels where there is no file |
| `sizes` | (n,) uint32 | size of the image file; 0 where there is none |
| `codes` | (n, variables) uint8 or uint16 | unit of each variable |
| `levels` | (n, variables) uint8 | confidence levels, see `columns` |
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from imsvd.datasets import EncodedSource, ImageSource
from imsvd.files import write_atomically
from imsvd.index.columns import Bytes, Numbers, confidence_at
from imsvd.index.segments import HASH_BYTES

PLACE = "explanations/known-codes.safetensors"
"""File in a run folder with the codes of images that were explained."""


class ContentKey(NamedTuple):
    """What identifies the content of an image: its hash, and the bytes of its file or 0."""

    hash: bytes
    size: int


def content_key(source: ImageSource, content: bytes) -> ContentKey:
    """Return the key of the content of an image: that of its file, or pixels where there is no file."""
    digest = hashlib.blake2b(content, digest_size=HASH_BYTES).digest()
    return ContentKey(digest, len(content) if isinstance(source, EncodedSource) else 0)


def content_at(source: ImageSource, index: int) -> bytes:
    """Return the content of an image; raises `UnreadableImage`."""
    if isinstance(source, EncodedSource):
        return source.encoded(index)
    return source.read(index).numpy().tobytes()


class KnownCodes:
    """Codes of n images by content.

    Args:
        hashes: (n, 12).
        sizes: (n,).
        codes: (n, variables).
        levels: confidence levels, (n, variables).
        features: (n, width), if they are kept.
    """

    def __init__(
        self,
        hashes: Bytes,
        sizes: NDArray[np.uint32],
        codes: Numbers,
        levels: Bytes,
        features: NDArray[np.float16] | None = None,
    ) -> None:
        self.hashes, self.sizes, self.codes, self.levels = hashes, sizes, codes, levels
        self.features = features
        beginnings = np.ascontiguousarray(hashes[:, :8]).view(np.uint64).ravel()
        self._order = np.argsort(beginnings, kind="stable")
        self._sorted = beginnings[self._order]

    def row(self, key: ContentKey) -> int:
        """Return the row of an image, or -1 if it is not known."""
        if key.size < 0:
            return -1
        beginning = np.frombuffer(key.hash, dtype=np.uint64, count=1)[0]
        first, last = (np.searchsorted(self._sorted, beginning, side) for side in ("left", "right"))
        for row in self._order[first:last].tolist():
            if self.hashes[row].tobytes() == key.hash and self.sizes[row] == key.size:
                return int(row)
        return -1

    def matrix(self, rows: NDArray[np.int64], width: int) -> NDArray[np.float32]:
        """Return codes, confidences and `width` features side by side; features that are not kept are 0."""
        empty = np.zeros((len(rows), width), dtype=np.float32)
        features = empty if self.features is None else self.features[rows]
        parts = [self.codes[rows], confidence_at(self.levels[rows]), features]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def write(self, run: Path, encoder: str) -> None:
        """Write the codes to a run folder, with the key of their encoder."""
        tensors = {
            "hashes": self.hashes,
            "sizes": self.sizes,
            "codes": self.codes,
            "levels": self.levels,
        }
        contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        write_atomically(run / PLACE, save(contiguous, {"encoder": encoder}))


def read_known(run: str | Path, encoder: str, units: tuple[int, ...]) -> KnownCodes | None:
    """Return the known codes of a run folder; None if they are missing, damaged or of another encoder."""
    try:
        with safe_open(Path(run) / PLACE, "numpy") as file:
            if (file.metadata() or {}).get("encoder") != encoder:
                return None
            found = {name: file.get_tensor(name) for name in ("hashes", "sizes", "codes", "levels")}
    except (OSError, SafetensorError):
        return None
    count = len(found["sizes"])
    shapes = {"hashes": (count, HASH_BYTES), "sizes": (count,)}
    fits = all(
        found[name].shape == shapes.get(name, (count, len(units))) for name in found
    ) and bool((found["codes"] < np.array(units)).all())
    return KnownCodes(**found) if fits else None
