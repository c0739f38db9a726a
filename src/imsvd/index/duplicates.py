"""Duplicates: equal files, and images that are edited copies of each other.

Equal files have equal hashes. Near-duplicates have codes that differ in few variables, and are confirmed
by the cosine of their features where the index keeps them. Thresholds come from `calibration`. All images
of a group are copies of the one to keep; chains of images that are alike in pairs only are cut.
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
from imsvd.index.calibration import (
    COMPARED,
    candidate_distance,
    cosine_threshold,
    distance_threshold,
    of_length_one,
)
from imsvd.index.close_codes import PackedCodes, Pairs, close_pairs, make_plan
from imsvd.index.contents import Contents, IndexedImage
from imsvd.index.query import parse
from imsvd.index.searching import data_frame, find, vocabulary

Features = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Gives the features of some images, of length 1; NaN if an image cannot be read."""

_CHUNK = 8192
MOST_PAIRS = 2**20
"""Most pairs of images of the same two codes that are compared one by one."""


@dataclass(frozen=True)
class Copy:
    """One image of a group of duplicates.

    Attributes:
        group: number of the group, from 0 on.
        path: path of the image.
        keep: whether it is the copy to keep: the largest file, of equal ones the oldest. A file that
            was deleted is kept only if all of the group were.
        kind: "exact" if its file is equal to the one to keep, or else "near".
        likeness: cosine to the copy to keep (of that copy: to the most similar image), or the share of
            equal variables; 1 for equal files.
        position: its position in its index.
        side: 0 or 1: which of two sets it belongs to; 0 if there is one set.
        size: bytes of its file.
        state: "deleted" if its file no longer exists, or else "".
    """

    group: int
    path: str
    keep: bool
    kind: str
    likeness: float
    position: int
    side: int
    size: int
    state: str = ""


@dataclass(frozen=True)
class Duplicates:
    """Groups of duplicates, and how they were found.

    Attributes:
        groups: images that are copies of each other, the one to keep first.
        distance: most variables in which codes of near-duplicates differ; -1 if codes do not tell copies
            from images that are only alike, and just equal files were sought.
        wanted_distance: the same, before it was reduced to what can be computed in reasonable time.
        cosine: least cosine of their features; None if features were not compared.
        changed: images that are left out because their files were changed since they were indexed.
    """

    groups: tuple[tuple[Copy, ...], ...]
    distance: int
    wanted_distance: int
    cosine: float | None
    changed: int = 0

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
        sizes, modified = (
            np.concatenate([index.column(name) for index in indexes]).astype(np.int64)
            for name in ("sizes", "modified")
        )
        self.ranks = np.empty(len(sizes), dtype=np.int64)
        """Which of several copies to keep: that of the lowest rank."""
        self.ranks[np.lexsort((modified, -sizes))] = np.arange(len(sizes))

    def look_again(self, pairs: Pairs) -> tuple[NDArray[np.bool_], int]:
        """Return which pairs have no file that was changed since, and the number of such files.

        From now on, files that were deleted rank last: they are not there to be kept.
        """
        numbers = np.unique(pairs)
        states = np.array([self.image(int(number))[1].state() for number in numbers], dtype=str)
        self.ranks[numbers[states == "deleted"]] += len(self.ranks)
        changed = numbers[states == "changed"]
        left_out = np.isin(pairs[:, 0], changed) | np.isin(pairs[:, 1], changed)
        return ~left_out, len(changed)

    def image(self, number: int) -> tuple[int, IndexedImage]:
        side = int(np.searchsorted(self.starts, number, side="right")) - 1
        return side, self.indexes[side].image(number - int(self.starts[side]))

    def features_at(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return kept features of length 1, (len(numbers), width)."""
        found = np.empty((len(numbers), self.indexes[0].manifest.features or 0), dtype=np.float32)
        for start, index in zip(self.starts, self.indexes, strict=False):
            own = (numbers >= start) & (numbers < start + len(index))
            found[own] = index.features_at(numbers[own] - start)
        return of_length_one(found)

    def encode(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Encode images again; those that cannot be read or were changed have NaN."""
        coder = self.indexes[0].coder
        found = np.full((len(numbers), coder.encoder.num_features), np.nan, dtype=np.float32)
        for first in range(0, len(numbers), BATCH_SIZE):
            crops, rows = [], []
            for row in range(first, min(first + BATCH_SIZE, len(numbers))):
                side, image = self.image(int(numbers[row]))
                if image.state():
                    continue  # what is there now is not what the code describes
                try:
                    crops.append(center_crop(self.indexes[side].read(image.position), coder.size))
                    rows.append(row)
                except UnreadableImage:
                    continue
            if crops:
                found[rows] = coder.encode(torch.stack(crops)).features
        return of_length_one(found)


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
    features = images.features_at if kept else images.encode if confirm else None
    if within is None and features is not None:
        within = candidate_distance(near)
    elif within is None:
        within = distance_threshold(near, PackedCodes(images.codes, index.units), total)
    distance = (
        min(within, 0) if total < 2 or within < 0 else make_plan(images.codes, within).distance
    )
    exact = _equal_pairs(images, sides)
    pairs, likeness = _near_pairs(images, sides, distance, progress)
    limit = None
    if features is not None:
        limit = _limit(near, features, total, confirm and not kept) if cosine is None else cosine
        likeness = _cosines(pairs, features)
        sure = likeness >= limit
        pairs, likeness = pairs[sure], likeness[sure]
    pairs = np.concatenate([exact, pairs])
    likeness = np.concatenate([np.ones(len(exact)), likeness])
    unchanged, changed = images.look_again(pairs)
    groups = _groups(images, sides, pairs[unchanged], likeness[unchanged])
    return Duplicates(groups, distance, within, limit, changed)


def _limit(near: dict[str, Any], features: Features, total: int, encoded: bool) -> float:
    """Return the least cosine of copies, from the neighbors of some images."""
    count = COMPARED // 8 if encoded else COMPARED  # encoding again takes time
    some = features(np.sort(np.random.default_rng(0).permutation(total)[:count]))
    return cosine_threshold(near, some[~np.isnan(some[:, 0])], total)


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


def _equal_pairs(images: _Images, sides: NDArray[np.int8] | None) -> Pairs:
    """Return pairs of equal content (pairs, 2): each image with the best one, and with that of each side."""
    order = np.argsort(images.hashes, kind="stable")
    same = images.hashes[order[1:]] == images.hashes[order[:-1]]
    ends = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for start, stop in ends.reshape(-1, 2).tolist():
        members = order[start : stop + 1]
        parts = [members]
        if sides is not None:
            parts += [members[sides[members] == side] for side in (0, 1)]
        centers = {int(part[images.ranks[part].argmin()]) for part in parts if len(part)}
        pairs += [_star(center, members) for center in sorted(centers)]
    found = np.concatenate(pairs)
    return found[_across(found, sides)]


def _star(center: int, members: NDArray[np.int64]) -> Pairs:
    others = members[members != center]
    return np.stack([np.full(len(others), center), others], axis=1)


def _across(pairs: Pairs, sides: NDArray[np.int8] | None) -> NDArray[np.bool_]:
    """Return which pairs count, (pairs,): all, or those between two sets if there are two."""
    if sides is None:
        return np.ones(len(pairs), dtype=bool)
    first, second = sides[pairs[:, 0]], sides[pairs[:, 1]]
    counts: NDArray[np.bool_] = (first >= 0) & (second >= 0) & (first != second)
    return counts


def _near_pairs(
    images: _Images,
    sides: NDArray[np.int8] | None,
    distance: int,
    progress: Callable[[int, int], None],
) -> tuple[Pairs, NDArray[np.float64]]:
    """Return pairs of images whose codes are close, and their shares of equal variables."""
    codes, units = images.codes, images.indexes[0].units
    if distance < 0:
        return np.empty((0, 2), dtype=np.int64), np.empty(0)
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
    expanded = [
        _pairs_of(members[left], members[right], images.ranks) for left, right in close[~single]
    ]
    repeated = np.repeat(distances[~single], [len(part) for part in expanded])
    pairs = np.concatenate([first[close[single]], *expanded])
    apart = np.concatenate([distances[single], repeated])
    counted = _across(pairs, sides)
    return pairs[counted], 1 - apart[counted] / codes.shape[1]


def _pairs_of(left: NDArray[np.int64], right: NDArray[np.int64], ranks: Pairs) -> Pairs:
    """Return all pairs of images of two codes; of very many, those with the best image."""
    if len(left) * len(right) > MOST_PAIRS:
        both = np.union1d(left, right)
        return _star(int(both[ranks[both].argmin()]), both)
    pairs = np.stack([np.repeat(left, len(right)), np.tile(right, len(left))], axis=1)
    return pairs[pairs[:, 0] < pairs[:, 1]] if left is right else pairs


def _cosines(pairs: Pairs, features: Features) -> NDArray[np.float64]:
    found = np.empty(len(pairs))
    for start in range(0, len(pairs), _CHUNK):
        chunk = pairs[start : start + _CHUNK]
        numbers, places = np.unique(chunk, return_inverse=True)
        rows = features(numbers)[places.reshape(chunk.shape)]
        found[start : start + _CHUNK] = np.einsum("pw,pw->p", rows[:, 0], rows[:, 1])
    return found


class _Graph:
    """Pairs of copies as the partners of each image, best image first."""

    def __init__(self, pairs: Pairs, likeness: NDArray[np.float64], ranks: Pairs) -> None:
        # Nodes are numbered by rank.
        numbers, first, places = np.unique(ranks[pairs], return_index=True, return_inverse=True)
        ends = places.reshape(-1, 2)
        sources = np.concatenate([ends[:, 0], ends[:, 1]])
        order = np.argsort(sources, kind="stable")
        self.images = pairs.ravel()[first]
        self._partners = np.concatenate([ends[:, 1], ends[:, 0]])[order]
        self._likeness = np.tile(likeness, 2)[order]
        self._starts = np.searchsorted(sources[order], np.arange(len(numbers) + 1))

    def partners(self, node: int) -> dict[int, float]:
        """Return the copies of an image, with their likeness."""
        own = slice(self._starts[node], self._starts[node + 1])
        found: dict[int, float] = {}
        for partner, value in zip(self._partners[own].tolist(), self._likeness[own], strict=True):
            found[partner] = max(found.get(partner, -1.0), float(value))
        return found


def _groups(
    images: _Images, sides: NDArray[np.int8] | None, pairs: Pairs, likeness: NDArray[np.float64]
) -> tuple[tuple[Copy, ...], ...]:
    """Give each best image its copies, then the next of those that are left; largest groups first."""
    graph = _Graph(pairs, likeness, images.ranks)
    group_of: dict[int, int] = {}
    groups: list[dict[int, float]] = []
    for node in range(len(graph.images)):
        if node in group_of:
            continue
        partners = graph.partners(node)
        own = {other: value for other, value in partners.items() if other not in group_of}
        if own:
            groups.append({node: max(own.values()), **own})
            group_of |= dict.fromkeys(groups[-1], len(groups) - 1)
        elif sides is not None:
            # Every image with a copy in the other set is named, though its copy has a better one.
            nearest = max(partners, key=lambda other: partners[other])
            group_of[node] = group_of[nearest]
            groups[group_of[node]][node] = partners[nearest]
    known = [
        {int(graph.images[node]): value for node, value in sorted(group.items())}
        for group in groups
    ]
    known.sort(key=lambda group: (-len(group), min(group)))
    return tuple(_group(images, sides, number, group) for number, group in enumerate(known))


def _group(
    images: _Images, sides: NDArray[np.int8] | None, group: int, members: dict[int, float]
) -> tuple[Copy, ...]:
    known = {number: images.image(number)[1] for number in members}
    first = next(iter(known.values()))
    return tuple(
        Copy(
            group,
            image.path,
            image is first,
            "exact" if image.hash == first.hash else "near",
            round(members[number], 4),
            image.position,
            0 if sides is None else int(sides[number]),
            image.size,
            image.state(),
        )
        for number, image in known.items()
    )
