"""The codes of all images, gathered in the pass that discreteness, galleries, Grad-CAM, meaning and
retrieval share.

All of q would be images × width floats. Kept instead: each image's code and confidence, sums over
all images, the best images of every unit, features of a sample, and small pictures of both.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save
from torch import Tensor

from imsvd.explanations.subject import Collector, ReadBatch, State, Subject, evenly_spaced
from imsvd.files import write_atomically
from imsvd.index.columns import level_of
from imsvd.index.known import KnownCodes
from imsvd.index.segments import HASH_BYTES
from imsvd.information import certainty, codes, max_probabilities, soft_discretize

FILE_NAME = "encodings.safetensors"
PICTURES_NAME = "pictures.safetensors"
HISTOGRAM_BINS = 100
THRESHOLDS = (0.9, 0.99)
"""The paper counts a sub-vector as one-hot above these."""

GALLERY_IMAGES = 12
SAMPLE_IMAGES = 20_000
"""Most images whose features are kept."""
PICTURE_SIDE = 96
"""Larger crops are kept as thumbnails of this size."""


class Encodings(NamedTuple):
    """The result for n readable images, M variables and `width` units in total."""

    images: NDArray[np.int64]
    """Their positions in the source, (n,)."""
    codes: NDArray[np.unsignedinteger[Any]]
    """The unit each variable takes, (n, M) uint8, or uint16 above 256 units."""
    confidence: NDArray[np.float32]
    """The probability of that unit, (n, M)."""
    marginals: NDArray[np.float64]
    """Mean of q, (width,)."""
    histogram: NDArray[np.int64]
    """Largest probabilities counted in equal bins from 0 to 1."""
    above: NDArray[np.int64]
    """How many exceed each of `THRESHOLDS`, counted before rounding."""
    top_images: NDArray[np.int64]
    """Positions of the best images of every unit, best first, (width, k); -1 where there is none."""
    top_scores: NDArray[np.float32]
    """Their probabilities, (width, k)."""
    feature_rows: NDArray[np.int64]
    """Rows of `images` whose features were kept."""
    features: NDArray[np.float16]
    """Their backbone features, (rows, num_features)."""


def read_encodings(path: Path, key: str) -> Encodings | None:
    """Return the encodings in a file, or None if it is missing, damaged or has another key."""
    arrays = read_arrays(path, key)
    try:
        return None if arrays is None else Encodings(**arrays)
    except TypeError:
        return None


def read_arrays(path: Path, key: str) -> dict[str, NDArray[Any]] | None:
    """Return the arrays in a file, or None if it is missing, damaged or has another key."""
    try:
        with safe_open(path, "numpy") as file:
            if (file.metadata() or {}).get("key") != key:
                return None
        return load_file(path)
    except (OSError, SafetensorError):
        return None


def write_arrays(path: Path, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a file, together with the key of what they belong to."""
    contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    write_atomically(path, save(contiguous, metadata={"key": key}))


class EncodingsCollector(Collector):
    """Encodes whole images batch by batch; returns `Encodings`."""

    name = "encodings"
    writes_file = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        width, variables = sum(subject.units), len(subject.units)
        dtype = np.uint8 if max(subject.units) <= 256 else np.uint16
        self._top = TopImages(width, GALLERY_IMAGES)
        self._sample = set(evenly_spaced(len(subject.source), SAMPLE_IMAGES))
        self._count = 0
        self._pictures: dict[int, bytes] = {}
        self.sums = {
            "marginals": torch.zeros(width, dtype=torch.float64),
            "histogram": torch.zeros(HISTOGRAM_BINS, dtype=torch.int64),
            "above": torch.zeros(len(THRESHOLDS), dtype=torch.int64),
            "top": self._top.keys,
        }
        self.rows = {
            "images": [np.empty(0, dtype=np.int64)],
            "codes": [np.empty((0, variables), dtype=dtype)],
            "confidence": [np.empty((0, variables), dtype=np.float32)],
            "feature_rows": [np.empty(0, dtype=np.int64)],
            "features": [np.empty((0, subject.encoder.num_features), dtype=np.float16)],
            "hashes": [np.empty((0, HASH_BYTES), dtype=np.uint8)],
            "sizes": [np.empty(0, dtype=np.uint32)],
        }

    @classmethod
    def stored(cls, subject: Subject) -> Encodings | None:
        """Return the encodings of an earlier pass."""
        return read_encodings(subject.folder / FILE_NAME, subject.key)

    def take(self, batch: ReadBatch) -> None:
        """Encode a batch."""
        encoder, units = self.subject.encoder, self.subject.units
        normalized = encoder.normalize(batch.crops)
        features = encoder.backbone(normalized.contiguous(memory_format=torch.channels_last))
        precise = soft_discretize(encoder.projector(features).cpu().double(), units)
        q = precise.float()
        largest = max_probabilities(q, units)
        sampled = [row for row, index in enumerate(batch.indices) if index in self._sample]
        made = {
            "images": np.array(batch.indices),
            "codes": codes(q, units).numpy().astype(self.rows["codes"][0].dtype),
            "confidence": largest.numpy(),
            "feature_rows": self._count + np.array(sampled, dtype=np.int64),
            "features": features[sampled].half().cpu().numpy(),
            "hashes": np.array([list(key.hash) for key in batch.keys], dtype=np.uint8),
            "sizes": np.array([key.size for key in batch.keys], dtype=np.uint32),
        }
        for name, value in made.items():
            self.rows[name].append(value)
        self.sums["marginals"] += q.double().sum(0)
        self.sums["histogram"] += torch.histc(largest, HISTOGRAM_BINS, 0, 1).long()
        self.sums["above"] += torch.tensor([int((largest > level).sum()) for level in THRESHOLDS])
        self._top.add(certainty(precise, units), torch.tensor(batch.indices))
        self._count += len(q)
        self._keep_pictures(batch)

    def _keep_pictures(self, batch: ReadBatch) -> None:
        """Keep pictures of the sample and of every unit's best images so far, no others."""
        kept = self._sample | set(self._top.best().images.flatten().tolist())
        for index, crop in zip(batch.indices, batch.crops, strict=True):
            if index in kept:
                self._pictures[index] = encode_picture(crop)
        for index in self._pictures.keys() - kept:
            del self._pictures[index]

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything gathered so far."""
        pictures = {f"picture_{name}": value for name, value in _pack(self._pictures).items()}
        return super().state() | pictures

    def restore(self, state: State) -> None:
        """Continue from an earlier state."""
        super().restore(state)
        self._count = len(state["images"])
        prefix = "picture_"
        self._pictures = _unpack(
            {name.removeprefix(prefix): value for name, value in state.items() if prefix in name}
        )

    def finish(self) -> Encodings:
        """Write and return the encodings."""
        best = self._top.best()
        rows = {name: self.joined(name) for name in self.rows}
        content = rows.pop("hashes"), rows.pop("sizes")
        made = rows | {
            "marginals": (self.sums["marginals"] / self._count).numpy(),
            "histogram": self.sums["histogram"].numpy(),
            "above": self.sums["above"].numpy(),
            "top_images": best.images.numpy(),
            "top_scores": best.scores.numpy(),
        }
        folder, key = self.subject.folder, self.subject.key
        write_arrays(folder / PICTURES_NAME, key, _pack(self._pictures))
        known = KnownCodes(*content, rows["codes"], level_of(rows["confidence"]))
        known.write(folder.parent, key.partition("-")[0])
        write_arrays(folder / FILE_NAME, key, made)
        return Encodings(**made)


class Best(NamedTuple):
    """The best images of every unit, best first; the earlier image wins a tie."""

    images: Tensor
    """(width, count) int64 positions; -1 where there were too few images."""
    scores: Tensor
    """(width, count) float32 probabilities; 0 where there is no image."""


class TopImages:
    """Keeps the `count` images that are most certain of each of `width` units.

    Images are ordered by `certainty`, because the probabilities of sharp codes round to 1. A score and
    a position form one 64-bit key: the bits of a non-negative float32 sort as the float does, and
    below them the position counts backwards. Keys are unique, so the result does not depend on the
    order or the batches in which images arrive.
    """

    _LOW = 2**32 - 1

    def __init__(self, width: int, count: int) -> None:
        self.keys = torch.full((width, count), -1, dtype=torch.int64)

    def add(self, certainties: Tensor, images: Tensor) -> None:
        """Add the certainties (batch, width) of the images at positions (batch,)."""
        bits = certainties.detach().cpu().float().T.contiguous().view(torch.int32).long()
        keys = (bits << 32) | (self._LOW - images.cpu().long())
        count = self.keys.shape[1]
        best = keys.topk(min(count, keys.shape[1]), dim=1).values
        self.keys.copy_(torch.cat((self.keys, best), 1).topk(count, dim=1).values)

    def best(self) -> Best:
        """Return the best images so far."""
        empty = self.keys < 0
        scores = -torch.expm1(-(self.keys >> 32).int().view(torch.float32))
        images = self._LOW - (self.keys & self._LOW)
        return Best(images.masked_fill(empty, -1), scores.masked_fill(empty, 0.0))


class Pictures:
    """Images as the encoder sees them, from the pictures kept in the pass where possible."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._size = subject.encoder.description.size
        arrays = read_arrays(subject.folder / PICTURES_NAME, subject.key)
        self._kept = {} if arrays is None else _unpack(arrays)

    @property
    def side(self) -> int:
        """Side of thumbnails in pixels."""
        return max(48, min(PICTURE_SIDE, self._size))

    def thumbnail(self, index: int) -> Image.Image:
        """Return an image at `side` by `side` pixels; raises `UnreadableImage`."""
        picture: Image.Image
        if index in self._kept:
            picture = Image.open(io.BytesIO(self._kept[index]))
        else:
            picture = Image.fromarray(self.crop(index).permute(1, 2, 0).numpy())
        return picture.resize((self.side, self.side), Image.Resampling.LANCZOS)

    def crop(self, index: int) -> Tensor:
        """Return an image at the encoder's size, uint8; raises `UnreadableImage`."""
        if index in self._kept and self._size <= PICTURE_SIDE:
            pixels = np.array(Image.open(io.BytesIO(self._kept[index])))
            return torch.from_numpy(pixels).permute(2, 0, 1)
        return self._subject.crop(index)


def encode_picture(crop: Tensor) -> bytes:
    """Encode a crop losslessly if it is small, otherwise as a JPEG thumbnail."""
    picture = Image.fromarray(crop.permute(1, 2, 0).numpy())
    content = io.BytesIO()
    if picture.width <= PICTURE_SIDE:
        picture.save(content, "PNG", compress_level=1)
    else:
        small = picture.resize((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.LANCZOS)
        small.save(content, "JPEG", quality=95, subsampling=0)
    return content.getvalue()


def _pack(pictures: Mapping[int, bytes]) -> dict[str, NDArray[Any]]:
    """Return pictures as arrays: positions, where each one ends, and their bytes."""
    return {
        "images": np.array(list(pictures), dtype=np.int64),
        "ends": np.cumsum([len(content) for content in pictures.values()], dtype=np.int64),
        "content": np.frombuffer(b"".join(pictures.values()), dtype=np.uint8),
    }


def _unpack(arrays: Mapping[str, NDArray[Any]]) -> dict[int, bytes]:
    content, ends = arrays["content"].tobytes(), arrays["ends"].tolist()
    starts = [0, *ends][:-1]
    spans = zip(arrays["images"].tolist(), starts, ends, strict=True)
    return {index: content[start:end] for index, start, end in spans}
