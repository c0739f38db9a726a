"""One pass over the images, of which discreteness, galleries, meaning and retrieval make use.

All of q would be images × width floats. What is kept instead: each image's code and how sure it is,
sums over all images, the best images of every unit, and the features of a sample of images.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save
from torch import Tensor, nn

from imsvd.datasets import Subset
from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.evaluation import extract_features
from imsvd.explanations.partial_pass import PartialPass
from imsvd.explanations.subject import Progress, Subject, evenly_spaced
from imsvd.explanations.top_images import TopImages
from imsvd.files import write_atomically
from imsvd.information import codes, max_probabilities, soft_discretize

FILE_NAME = "encodings.safetensors"
PARTIAL_NAME = "encodings.partial.npz"
HISTOGRAM_BINS = 100
THRESHOLDS = (0.9, 0.99)
"""Above these a sub-vector counts as one-hot in the paper."""

GALLERY_IMAGES = 12
FEATURE_IMAGES = 20_000
"""Most images whose features are kept."""

_CHUNK = 1024
_BATCH = 128


class Encodings(NamedTuple):
    """What one pass leaves, for n readable images, M variables and `width` units in all."""

    images: NDArray[np.int64]
    """Their positions in the source, (n,)."""
    codes: NDArray[np.unsignedinteger[Any]]
    """The unit each variable takes, (n, M) uint8, or uint16 above 256 units."""
    confidence: NDArray[np.float32]
    """The probability of that unit, (n, M)."""
    marginals: NDArray[np.float64]
    """Mean of q, (width,)."""
    histogram: NDArray[np.int64]
    """How many largest probabilities fall into each of equal bins from 0 to 1."""
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


def encode(subject: Subject, progress: Progress | None = None) -> Encodings:
    """Return the encodings of all images, from the file of an earlier pass where there is one."""
    path = subject.folder / FILE_NAME
    existing = read_encodings(path, subject.key)
    if existing is not None:
        return existing
    saved = PartialPass(subject.folder / PARTIAL_NAME, subject.key)
    made = _Pass(subject, saved).run(progress)
    arrays = {name: np.ascontiguousarray(value) for name, value in made._asdict().items()}
    write_atomically(path, save(arrays, metadata={"key": subject.key}))
    saved.remove()
    return made


def read_encodings(path: Path, key: str) -> Encodings | None:
    """The encodings in a file, unless it is missing, damaged or of other data."""
    try:
        with safe_open(path, "numpy") as file:
            if (file.metadata() or {}).get("key") != key:
                return None
        return Encodings(**load_file(path))
    except (OSError, SafetensorError, TypeError):
        return None


class _Columns(nn.Module):
    """Probabilities and features of normalized images, side by side."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        features = self.encoder.backbone(images)
        q = soft_discretize(self.encoder.projector(features), self.encoder.description.units)
        return torch.cat([q, features], 1)


class _Pass:
    """Folds chunk after chunk of images into the encodings, going on from what was `saved`."""

    def __init__(self, subject: Subject, saved: PartialPass) -> None:
        self.subject = subject
        self.saved = saved
        total, units = len(subject.source), subject.units
        dtype = np.uint8 if max(units) <= 256 else np.uint16
        self.codes = np.empty((total, len(units)), dtype=dtype)
        self.confidence = np.empty((total, len(units)), dtype=np.float32)
        self.images: list[int] = []
        self.sums = torch.zeros(sum(units), dtype=torch.float64)
        self.histogram = torch.zeros(HISTOGRAM_BINS, dtype=torch.float64)
        self.above = np.zeros(len(THRESHOLDS), dtype=np.int64)
        self.top = TopImages(sum(units), GALLERY_IMAGES)
        self.wanted = set(evenly_spaced(total, FEATURE_IMAGES))
        self.feature_rows: list[int] = []
        self.features: list[NDArray[np.float16]] = []

    def run(self, progress: Progress | None) -> Encodings:
        """Read and encode everything."""
        before = self._restore()
        if progress is not None:
            progress(before, len(self.subject.source))
        for indices, columns, done in self._chunks(before, progress):
            if indices:
                self._fold(indices, columns)
            self.saved.save_when_due(partial(self._state, done))
        count = len(self.images)
        if not count:
            raise InputError(
                f"none of the {len(self.subject.source):,} images can be read; give others."
            )
        top = self.top.best()
        return Encodings(
            np.array(self.images),
            self.codes[:count],
            self.confidence[:count],
            (self.sums / count).numpy(),
            self.histogram.long().numpy(),
            self.above,
            top.images.numpy(),
            top.scores.numpy(),
            np.array(self.feature_rows, dtype=np.int64),
            self._joined_features(),
        )

    def _joined_features(self) -> NDArray[np.float16]:
        nothing = np.empty((0, self.subject.encoder.num_features), dtype=np.float16)
        return np.concatenate([nothing, *self.features])

    def _state(self, done: int) -> dict[str, NDArray[Any]]:
        count = len(self.images)
        return {
            "done": np.array(done),
            "images": np.array(self.images, dtype=np.int64),
            "codes": self.codes[:count],
            "confidence": self.confidence[:count],
            "sums": self.sums.numpy(),
            "histogram": self.histogram.numpy(),
            "above": self.above,
            "top": self.top.keys.numpy(),
            "feature_rows": np.array(self.feature_rows, dtype=np.int64),
            "features": self._joined_features(),
        }

    def _restore(self) -> int:
        """Take over what was saved, and return how many images it covers."""
        state = self.saved.read()
        if state is None:
            return 0
        self.images = state["images"].tolist()
        self.codes[: len(self.images)] = state["codes"]
        self.confidence[: len(self.images)] = state["confidence"]
        self.sums = torch.from_numpy(state["sums"])
        self.histogram = torch.from_numpy(state["histogram"])
        self.above = state["above"]
        self.top.restore(torch.from_numpy(state["top"]))
        self.feature_rows = state["feature_rows"].tolist()
        self.features = [state["features"]]
        return int(state["done"])

    def _chunks(
        self, first: int, progress: Progress | None
    ) -> Iterator[tuple[list[int], Tensor, int]]:
        """Positions, columns and how many images have been met, chunk by chunk from `first` on."""
        source, described = self.subject.source, self.subject.encoder.description
        columns = _Columns(self.subject.encoder)
        for start in range(first, len(source), _CHUNK):
            chunk = range(start, min(start + _CHUNK, len(source)))

            def tell(done: int, _: int, start: int = start) -> None:
                if progress is not None:
                    progress(start + done, len(source))

            try:
                encoded = extract_features(
                    columns,
                    Subset(source, chunk),
                    size=described.size,
                    mean=described.mean,
                    std=described.std,
                    device=self.subject.device,
                    batch_size=_BATCH,
                    progress=tell,
                )
            except InputError:  # nothing in this chunk can be read; the others may be well
                yield [], torch.empty(0), chunk.stop
                continue
            bad = {image.index for image in encoded.skipped}
            kept = [index for place, index in enumerate(chunk) if place not in bad]
            yield kept, encoded.features, chunk.stop

    def _fold(self, indices: list[int], columns: Tensor) -> None:
        units = self.subject.units
        q, features = columns[:, : sum(units)], columns[:, sum(units) :]
        first = len(self.images)
        rows = slice(first, first + len(indices))
        largest = max_probabilities(q, units)
        self.codes[rows] = codes(q, units).numpy()
        self.confidence[rows] = largest.numpy()
        self.sums += q.double().sum(0)
        self.histogram += torch.histc(largest, HISTOGRAM_BINS, 0, 1).double()
        self.above += [int((largest > threshold).sum()) for threshold in THRESHOLDS]
        self.top.add(q, torch.tensor(indices))
        places = [place for place, index in enumerate(indices) if index in self.wanted]
        self.feature_rows += [first + place for place in places]
        self.features.append(features[places].half().numpy())
        self.images += indices
