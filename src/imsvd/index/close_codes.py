"""All pairs of codes that differ in few variables, exactly, without comparing all pairs.

If two codes differ in at most d variables, and the variables are cut into d + k blocks, then at least k
blocks are equal (the pigeonhole principle). So every choice of k blocks is a key, codes are sorted by each
key, and only codes with equal keys are compared. Longer keys (larger k) leave fewer comparisons but need
more sorts; k is chosen by the expected work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.index.columns import Numbers, planes_needed

FEW_CODES = 3000
"""Up to this many codes, all pairs are compared."""
MOST_WORK = 3e10
"""Most expected work, in operations on one code or one pair."""
_SORTING = 60.0
"""Work of sorting one code by one key, relative to comparing one pair."""
_SAMPLE = 1500
_CHUNK = 2**20

Pairs = NDArray[np.int64]
"""(pairs, 2) rows of codes, the smaller first."""


class Plan(NamedTuple):
    """How close codes are found."""

    distance: int
    equal_blocks: int
    work: float


class PackedCodes:
    """Codes as words in which each variable has one bit per plane, so that pairs are compared quickly."""

    def __init__(self, codes: Numbers, units: Sequence[int]) -> None:
        count, self.variables = codes.shape
        octets = 8 * -(-self.variables // 64)
        self.planes = []
        for place in range(planes_needed(max(units))):
            bits = np.zeros((count, octets), dtype=np.uint8)
            packed = np.packbits((codes >> place & 1).astype(np.uint8), axis=1)
            bits[:, : packed.shape[1]] = packed
            self.planes.append(bits.view(np.uint64))

    def distances(self, first: Pairs, second: Pairs) -> NDArray[np.int64]:
        """Return in how many variables codes differ, (pairs,)."""
        different = self.planes[0][first] ^ self.planes[0][second]
        for plane in self.planes[1:]:
            different |= plane[first] ^ plane[second]
        counted: NDArray[np.int64] = np.bitwise_count(different).sum(axis=1, dtype=np.int64)
        return counted


def close_pairs(
    codes: Numbers,
    units: Sequence[int],
    plan: Plan,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Pairs, NDArray[np.int64]]:
    """Return all pairs of different codes (n, variables) within the plan's distance, and their distances."""
    packed = PackedCodes(codes, units)
    found: list[NDArray[np.int64]] = []
    candidates = (
        _all_pairs(len(codes))
        if len(codes) <= FEW_CODES
        else _pairs_by_keys(codes, units, plan, progress)
    )
    for first, second in candidates:
        distances = packed.distances(first, second)
        near = distances <= plan.distance
        if near.any():
            low, high = np.minimum(first[near], second[near]), np.maximum(first[near], second[near])
            found.append(np.stack([low * len(codes) + high, distances[near]]))
    if not found:
        return np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64)
    joined = np.concatenate(found, axis=1)
    keys, places = np.unique(joined[0], return_index=True)
    return np.stack(np.divmod(keys, len(codes)), axis=1), joined[1, places]


def make_plan(codes: Numbers, distance: int) -> Plan:
    """Choose the number of equal blocks; a distance that would take too long is reduced."""
    count, variables = codes.shape
    random = np.random.default_rng(0)
    sample = codes[random.choice(count, min(count, _SAMPLE), replace=False)]
    for reduced in range(min(distance, variables - 1), -1, -1):
        plans = [
            Plan(reduced, equal, _work(sample, count, reduced, equal, random))
            for equal in range(1, min(5, variables - reduced + 1))
        ]
        best = min(plans, key=lambda plan: plan.work)
        if best.work <= MOST_WORK or reduced == 0 or count <= FEW_CODES:
            return best
    raise AssertionError("unreachable")


def _work(
    sample: Numbers, count: int, distance: int, equal: int, random: np.random.Generator
) -> float:
    """Return the expected work: sorts by all keys, and comparisons of codes with equal keys."""
    variables = sample.shape[1]
    keys = math.comb(distance + equal, equal)
    width = max(1, equal * variables // (distance + equal))
    shares = []
    for _ in range(4):
        chosen = sample[:, random.choice(variables, width, replace=False)]
        _, counts = np.unique(chosen, axis=0, return_counts=True)
        pairs = len(sample) * (len(sample) - 1) / 2
        shares.append((counts * (counts - 1) / 2).sum() / max(1.0, pairs))
    # A sample without a pair may come from codes with as many as one in all its pairs.
    share = max(float(np.mean(shares)), 0.3 / max(1.0, len(sample) ** 2 / 2))
    return float(keys * (_SORTING * count + share * count**2 / 2))


def _all_pairs(count: int) -> Iterator[tuple[Pairs, Pairs]]:
    for row in range(count - 1):
        others = np.arange(row + 1, count)
        yield np.full(len(others), row), others


def _pairs_by_keys(
    codes: Numbers, units: Sequence[int], plan: Plan, progress: Callable[[int, int], None]
) -> Iterator[tuple[Pairs, Pairs]]:
    count, variables = codes.shape
    random = np.random.default_rng(1)
    # Blocks of about equal information: variables are dealt in order of how often two codes agree.
    agreement = [
        np.square(np.bincount(codes[:, m], minlength=units[m]) / count).sum()
        for m in range(variables)
    ]
    dealt = np.argsort(agreement)
    number = plan.distance + plan.equal_blocks
    hashes = []
    for block in range(number):
        total = np.zeros(count, dtype=np.uint64)
        for variable in dealt[block::number]:
            table = random.integers(0, 2**64, units[variable], dtype=np.uint64)
            total ^= table[codes[:, variable]]
        hashes.append(total)
    choices = list(itertools.combinations(range(number), plan.equal_blocks))
    bits = np.uint64(max(1, (count - 1).bit_length()))
    rows = np.arange(count, dtype=np.uint64)
    for done, chosen in enumerate(choices, start=1):
        key = hashes[chosen[0]].copy()
        for block in chosen[1:]:
            key ^= hashes[block]
        # Hash and row in one number, which sorts several times as fast as an order of rows.
        ordered = np.sort((key >> bits << bits) | rows)
        yield from _equal_neighbors(
            ordered >> bits, (ordered & ((np.uint64(1) << bits) - np.uint64(1)))
        )
        progress(done, len(choices))


def _equal_neighbors(
    keys: NDArray[np.uint64], rows: NDArray[np.uint64]
) -> Iterator[tuple[Pairs, Pairs]]:
    """Yield the pairs of rows whose sorted keys are equal, in chunks."""
    active = np.flatnonzero(keys[:-1] == keys[1:])
    step = 1
    while len(active):
        for start in range(0, len(active), _CHUNK):
            chunk = active[start : start + _CHUNK]
            yield rows[chunk].astype(np.int64), rows[chunk + step].astype(np.int64)
        step += 1
        active = active[active + step < len(keys)]
        active = active[keys[active] == keys[active + step]]
