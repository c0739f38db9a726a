"""Likeness: images that share units with others.

A shared unit counts with -log of its share of all images, so that rare units say more. Eight variables
at a time, the sets of images that have the example's units become one byte per image, and a table of 256
sums gives what they weigh together. Of each segment, only images that are better than the best so far are
kept. If features are kept, the best images by units are put in order by the cosine of their features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.errors import InputError
from imsvd.index.columns import Bytes, Numbers, equal_to, members, unpack
from imsvd.index.contents import Contents
from imsvd.index.query import Node, evaluate
from imsvd.index.segments import Segment

REORDERED = 500
"""Most images that features put in order."""

Scores = NDArray[np.float32]
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Example:
    """An image that others shall be like or unlike.

    Attributes:
        codes: unit of every variable.
        features: its features, if the index keeps them.
        position: its position, if it is in the index.
    """

    codes: Numbers
    features: NDArray[np.float32] | None
    position: int | None


def example(index: Contents, path: str | Path) -> Example:
    """Return an image of the index, or encode another file."""
    position = index.find(path)
    if position is not None and index.image(position).state() != "changed":
        return example_at(index, position)
    if not Path(path).is_file():
        raise InputError(f"{path} is neither an image of {index.path} nor a file.")
    encoded = index.coder.encode_file(Path(path))
    kept = encoded.features[0] if index.manifest.features is not None else None
    return Example(encoded.codes[0], kept, position)


def example_at(index: Contents, position: int) -> Example:
    """Return an image of the index as it was encoded."""
    features = None
    if index.manifest.features is not None:
        features = index.features_at(np.array([position]))[0].astype(np.float32)
    return Example(np.array(index.facts(position).codes), features, position)


class SharedUnits:
    """Which images of an index have each unit of a code, and what each unit weighs.

    Args:
        index: the images.
        codes: unit of every variable.
        share: factor of all scores.

    Attributes:
        weights: -log of the share of images that have each unit, (variables,).
    """

    def __init__(self, index: Contents, codes: Numbers, share: float) -> None:
        self._sets = [_sets(segment, codes.tolist()) for segment in index.segments]
        counts = np.zeros(len(codes), dtype=np.int64)
        for sets in self._sets:
            counts += np.bitwise_count(sets.view(np.uint64)).sum(axis=1, dtype=np.int64)
        # One more image than there are, so that a unit that nobody has does not weigh infinitely.
        self.weights: Scores = -np.log((counts + 1) / (len(index) + 1)).astype(np.float32)
        scaled = np.float32(share) * self.weights / max(float(self.weights.sum()), 1e-12)
        self._tables = [_sums(scaled[first : first + 8]) for first in range(0, len(codes), 8)]

    def add_scores(self, number: int, scores: Scores) -> None:
        """Add the share of the weight of all units that shared ones have, for the rows of a segment."""
        own = np.empty_like(scores)
        for group, table in enumerate(self._tables):
            shared = unpack(self._sets[number][8 * group : 8 * group + 8], len(scores))
            scores += np.take(table, shared, out=own, mode="clip")


def _sets(segment: Segment, units: Sequence[int]) -> Bytes:
    """Return the images of a segment that have each unit, (variables, whole words of eight bytes)."""
    octets = -(-segment.count // 8)
    sets = np.zeros((len(units), -(-octets // 8) * 8), dtype=np.uint8)
    for variable, unit in enumerate(units):
        sets[variable, :octets] = equal_to(segment.unit_planes(variable), unit)
    sets[:, :octets] &= segment.counting()
    return sets


def _sums(weights: Scores) -> Scores:
    """Return the sum of the weights that the bits of each number choose, (2 ** len(weights),)."""
    table = np.zeros(1, dtype=np.float32)
    for weight in weights:
        table = np.concatenate([table, table + weight])
    return table


class Alike(NamedTuple):
    """The most similar images, best first, how many were compared, and the weights of units by example."""

    positions: Positions
    scores: Scores
    total: int
    weights: tuple[Scores, ...]


def most_alike(
    index: Contents,
    node: Node | None,
    like: Sequence[Example],
    unlike: Sequence[Example],
    count: int,
) -> Alike:
    """Return the `count` images that are most alike, of all or of those that a query asks for.

    A score is the mean similarity to one group of examples minus that to the other: the weight of
    shared units, or the cosine of features if they are kept. Examples themselves are left out.
    """
    examples = [
        (each, sign / len(group)) for group, sign in ((like, 1), (unlike, -1)) for each in group
    ]
    shared = [SharedUnits(index, each.codes, share) for each, share in examples]
    own = np.array([each.position for each, _ in examples if each.position is not None], dtype=int)
    reorder = index.manifest.features is not None
    best, total = _Best(max(count, REORDERED) if reorder else count), 0
    for number, (start, segment) in enumerate(zip(index.starts, index.segments, strict=False)):
        scores = np.zeros(segment.count, dtype=np.float32)
        for units in shared:
            units.add_scores(number, scores)
        if node is not None:
            scores[~members(evaluate(node, segment), segment.count)] = -np.inf
        scores = segment.living(scores)
        scores[own[(own >= start) & (own < start + len(segment))] - start] = -np.inf
        total += int(np.count_nonzero(scores > -np.inf))
        best.add(scores, int(start))
    positions, scores = best.ordered()
    if reorder:
        scores = _cosines(index, positions, examples)
        order = highest(scores, count)
        positions, scores = positions[order], scores[order]
    return Alike(positions, scores, total, tuple(units.weights for units in shared[: len(like)]))


class _Best:
    """Collects the positions of the `count` highest scores; ties go to the earlier position."""

    def __init__(self, count: int) -> None:
        self._count, self._limit = count, np.float32(-np.inf)
        self._found: list[tuple[Positions, Scores]] = []

    def add(self, scores: Scores, start: int) -> None:
        """Add the scores of the positions from `start` on, which follow those added before."""
        better = np.flatnonzero(scores > self._limit)
        self._found.append((better + start, scores[better]))
        if sum(len(own) for _, own in self._found) > self._count:
            positions, kept = self.ordered()
            self._found = [(positions, kept)]
            self._limit = kept[-1] if len(kept) else np.float32(np.inf)

    def ordered(self) -> tuple[Positions, Scores]:
        """Return the best positions so far and their scores, best first."""
        if not self._found:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        positions, scores = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        order = highest(scores, self._count)
        return positions[order], scores[order]


def highest(scores: Scores, count: int) -> Positions:
    """Return the places of the `count` highest scores, highest first; ties in the order given."""
    if count < len(scores):
        limit = np.partition(scores, len(scores) - count)[len(scores) - count] if count else np.inf
        above = np.flatnonzero(scores > limit)
        equal = np.flatnonzero(scores == limit)[: count - len(above)]
        chosen = np.sort(np.concatenate([above, equal]))
    else:
        chosen = np.arange(len(scores))
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def _cosines(
    index: Contents, positions: Positions, examples: Sequence[tuple[Example, float]]
) -> Scores:
    features = index.features_at(positions).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
    scores = np.zeros(len(positions), dtype=np.float32)
    for each, share in examples:
        assert each.features is not None
        scores += share * (features @ each.features) / np.linalg.norm(each.features).clip(1e-12)
    return scores
