"""Duplicates: equal files, and images that are edited copies of each other.

Equal files have equal hashes. Near-duplicates have codes that differ in few variables, and are confirmed
by the cosine of their features where the index keeps them. Thresholds come from `calibration`. Images that
are copies of a common third one are in one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imsvd.datasets import UnreadableImage
from imsvd.errors import InputError
from imsvd.evaluation.features import BATCH_SIZE, center_crop
from imsvd.index.calibration import candidate_distance, cosine_threshold, distance_threshold
from imsvd.index.close_codes import Pairs, close_pairs, make_plan
from imsvd.index.contents import Contents, IndexedImage
from imsvd.index.query import parse
from imsvd.index.searching import data_frame, find, vocabulary

_CHUNK = 8192
MOST_PAIRS = 2**20
"""Most pairs of images of the same two codes that are compared one by one."""


@dataclass(frozen=True)
class Copy:
    """One image of a group of duplicates.

    Attributes:
        group: number of the group, from 0 on.
        path: path of the image.
        keep: whether it is the copy to keep: the largest file, of equal ones the oldest.
        kind: "exact" if its file is equal to the one to keep, or else "near".
        likeness: cosine to the most similar image of the group, or the share of equal variables.
        position: its position in its index.
        side: 0 or 1: which of two sets it belongs to; 0 if there is one set.
        size: bytes of its file.
    """

    group: int
    path: str
    keep: bool
    kind: str
    likeness: float
    position: int
    side: int
    size: int


@dataclass(frozen=True)
class Duplicates:
    """Groups of duplicates, and how they were found.

    Attributes:
        groups: images that are copies of each other, the one to keep first.
        distance: most variables in which codes of near-duplicates differ.
        wanted_distance: the same, before it was reduced to what can be computed in reasonable time.
        cosine: least cosine of their features; None if features were not compared.
    """

    groups: tuple[tuple[Copy, ...], ...]
    distance: int
    wanted_distance: int
    cosine: float | None

    def __len__(self) -> int:
        return len(self.groups)

    def to_pandas(self) -> Any:
        """Return all copies as a pandas data frame."""
        copies = (asdict(copy) for group in self.groups for copy in group)
        return data_frame(copies, Copy.__dataclass_fields__)


class _Images:
    """The images of one or two indexes, numbered through."""

    def __init__(self, indexes: Sequence[Contents]) -> None:
        self.indexes = indexes
        self.starts = np.cumsum([0, *map(len, indexes)])
        self.codes = np.concatenate([index.codes() for index in indexes])
        hashes = np.concatenate([index.column("hashes") for index in indexes])
        self.hashes = np.ascontiguousarray(hashes).view(f"V{hashes.shape[1]}").ravel()

    def image(self, number: int) -> tuple[int, IndexedImage]:
        side = int(np.searchsorted(self.starts, number, side="right")) - 1
        return side, self.indexes[side].image(number - int(self.starts[side]))

    def features_at(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return kept features of length 1, (len(numbers), width)."""
        found = np.empty((len(numbers), self.indexes[0].manifest.features or 0), dtype=np.float32)
        for start, index in zip(self.starts, self.indexes, strict=False):
            own = (numbers >= start) & (numbers < start + len(index))
            found[own] = index.features_at(numbers[own] - start)
        return _of_length_one(found)

    def encode(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Encode images again; those that cannot be read have NaN."""
        coder = self.indexes[0].coder
        found = np.full((len(numbers), coder.encoder.num_features), np.nan, dtype=np.float32)
        for first in range(0, len(numbers), BATCH_SIZE):
            crops, rows = [], []
            for row in range(first, min(first + BATCH_SIZE, len(numbers))):
                side, image = self.image(int(numbers[row]))
                try:
                    crops.append(center_crop(self.indexes[side].read(image.position), coder.size))
                    rows.append(row)
                except UnreadableImage:
                    continue
            if crops:
                found[rows] = coder.encode(torch.stack(crops)).features
        return _of_length_one(found)


def _of_length_one(features: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
    scaled: NDArray[np.float32] = features / lengths
    return scaled


def duplicates(
    index: Contents,
    other: Contents | None = None,
    *,
    between: tuple[str, str] | None = None,
    within: int | None = None,
    cosine: float | None = None,
    confirm: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Duplicates:
    """Find duplicates in an index, between two indexes, or between two parts of one.

    Args:
        index: where to search.
        other: another index of the same encoder; only duplicates between the two are found.
        between: two queries, such as "split:train" and "split:test"; the words train and test stand for
            these. Only duplicates between their images are found.
        within: most variables in which codes may differ. Default: as measured when the index was made.
        cosine: least cosine of features. Default: as measured.
        confirm: whether to encode near-duplicates again to compare features that are not kept.
        progress: called with (steps done, steps in total).
    """
    if other is not None and other.manifest.encoder != index.manifest.encoder:
        raise InputError(
            f"{index.path} and {other.path} were made with different encoders; their codes do not compare."
        )
    images = _Images([index] if other is None else [index, other])
    sides = _sides(index, other, between)
    kept = all(each.manifest.features is not None for each in images.indexes)
    near, total = index.manifest.near, len(images.codes)
    if not near and (within is None or ((kept or confirm) and cosine is None)):
        raise InputError(
            f"{index.path} has too few images to measure thresholds; give --within and --cosine."
        )
    if within is None:
        within = candidate_distance(near) if kept or confirm else distance_threshold(near, total)
    distance = make_plan(images.codes, within).distance if total > 1 else 0
    exact = _equal_pairs(images.hashes)
    pairs, likeness = _near_pairs(images, sides, distance, progress)
    limit = None
    if kept or confirm:
        limit = cosine_threshold(near, total) if cosine is None else cosine
        likeness = _cosines(pairs, images.features_at if kept else images.encode)
        sure = likeness >= limit
        pairs, likeness = pairs[sure], likeness[sure]
    groups = _groups(
        images, sides, np.concatenate([exact, pairs]), [1.0] * len(exact) + likeness.tolist()
    )
    return Duplicates(groups, distance, within, limit)


def _sides(
    index: Contents, other: Contents | None, between: tuple[str, str] | None
) -> NDArray[np.int8] | None:
    """Return to which of two sets each image belongs, -1 for none; None if there is one set."""
    if other is not None:
        return np.repeat(np.array([0, 1], dtype=np.int8), [len(index), len(other)])
    if between is None:
        return None
    sides = np.full(len(index), -1, dtype=np.int8)
    for side, query in enumerate(between):
        text = f"split:{query}" if query in index.facets.get("split", ()) else query
        found = find(index, parse(text, vocabulary(index)))
        if not len(found):
            raise InputError(f"no image of {index.path} is in {query!r}.")
        if (sides[found] >= 0).any():
            raise InputError(f"{between[0]!r} and {between[1]!r} have images in common.")
        sides[found] = side
    return sides


def _equal_pairs(hashes: NDArray[np.void]) -> Pairs:
    """Return each image with the next one of equal content, (pairs, 2)."""
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order[:-1]] == hashes[order[1:]])
    return np.stack([order[same], order[same + 1]], axis=1)


def _near_pairs(
    images: _Images,
    sides: NDArray[np.int8] | None,
    distance: int,
    progress: Callable[[int, int], None],
) -> tuple[Pairs, NDArray[np.float64]]:
    """Return pairs of images whose codes are close, and their shares of equal variables."""
    codes, units = images.codes, images.indexes[0].units
    # Different codes are compared once, however many images have them.
    rows = np.ascontiguousarray(codes).view(f"V{codes.shape[1] * codes.itemsize}").ravel()
    _, first, inverse, sizes = np.unique(
        rows, return_index=True, return_inverse=True, return_counts=True
    )
    close, distances = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64)
    if len(first) > 1:
        plan = make_plan(codes[first], distance)
        close, distances = close_pairs(codes[first], units, plan, progress)
    several = np.flatnonzero(sizes > 1)
    close = np.concatenate([close, np.stack([several, several], axis=1)])
    distances = np.concatenate([distances, np.zeros(len(several), dtype=np.int64)])
    single = (sizes[close] == 1).all(axis=1)
    members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(sizes)[:-1])
    expanded = [_pairs_of(members[left], members[right]) for left, right in close[~single]]
    repeated = np.repeat(distances[~single], [len(part) for part in expanded])
    pairs = np.concatenate([first[close[single]], *expanded])
    apart = np.concatenate([distances[single], repeated])
    if sides is not None:
        across = (sides[pairs].min(axis=1) >= 0) & (sides[pairs[:, 0]] != sides[pairs[:, 1]])
        pairs, apart = pairs[across], apart[across]
    return pairs, 1 - apart / codes.shape[1]


def _pairs_of(left: NDArray[np.int64], right: NDArray[np.int64]) -> Pairs:
    """Return all pairs of images of two codes; of very many, enough to connect all of them."""
    if len(left) * len(right) > MOST_PAIRS:
        chain = np.stack([left[:-1], left[1:]], axis=1)
        return chain if left is right else np.array([[left[0], right[0]]])
    pairs = np.stack([np.repeat(left, len(right)), np.tile(right, len(left))], axis=1)
    return pairs[pairs[:, 0] < pairs[:, 1]] if left is right else pairs


def _cosines(
    pairs: Pairs, features: Callable[[NDArray[np.int64]], NDArray[np.float32]]
) -> NDArray[np.float64]:
    found = np.empty(len(pairs))
    for start in range(0, len(pairs), _CHUNK):
        chunk = pairs[start : start + _CHUNK]
        numbers, places = np.unique(chunk, return_inverse=True)
        rows = features(numbers)[places.reshape(chunk.shape)]
        found[start : start + _CHUNK] = np.einsum("pw,pw->p", rows[:, 0], rows[:, 1])
    return found


def _groups(
    images: _Images, sides: NDArray[np.int8] | None, pairs: Pairs, likeness: Sequence[float]
) -> tuple[tuple[Copy, ...], ...]:
    """Join pairs to groups, the largest first."""
    parents: dict[int, int] = {}

    def top(number: int) -> int:
        parents.setdefault(number, number)
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    best: dict[int, float] = {}
    for (one, two), value in zip(pairs.tolist(), likeness, strict=True):
        if sides is not None and (min(sides[one], sides[two]) < 0 or sides[one] == sides[two]):
            continue  # equal files are found again by their equal codes
        parents[top(one)] = top(two)
        for number in (one, two):
            best[number] = max(best.get(number, -1.0), value)
    together: dict[int, list[int]] = {}
    for number in parents:
        together.setdefault(top(number), []).append(number)
    ordered = sorted(together.values(), key=lambda numbers: (-len(numbers), min(numbers)))
    return tuple(
        _group(images, sides, group, numbers, best) for group, numbers in enumerate(ordered)
    )


def _group(
    images: _Images,
    sides: NDArray[np.int8] | None,
    group: int,
    numbers: Sequence[int],
    best: dict[int, float],
) -> tuple[Copy, ...]:
    known = {number: images.image(number)[1] for number in numbers}
    order = sorted(
        numbers,
        key=lambda number: (-known[number].size, known[number].modified, known[number].path),
    )
    first = known[order[0]]
    return tuple(
        Copy(
            group,
            image.path,
            image is first,
            "exact" if image.hash == first.hash else "near",
            round(best[number], 4),
            image.position,
            0 if sides is None else int(sides[number]),
            image.size,
        )
        for number, image in ((number, known[number]) for number in order)
    )
