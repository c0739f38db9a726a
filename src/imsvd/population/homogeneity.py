"""Do two sets of codes come from the same distribution? A permutation test, overall and per variable.

Variable m takes unit u for a_u of n_a images and b_u of n_b; t_u = a_u + b_u and n = n_a + n_b.
Pearson's statistic of homogeneity is

    X²_m = Σ_u (a_u - t_u n_a / n)² n² / (n_a n_b t_u).

Images change places between the sets at random; variables of one image stay together, so that every
permutation shows how dependent variables vary jointly. P permutations give

- the overall p-value: the share of permutations, the observed one included, whose mean of
  (X²_m - k_m) / √(2 k_m) is at least the observed one; k_m + 1 is the number of used units;
- a p-value of every variable, and of every unit, adjusted for all others by Westfall and Young's
  step-down maximum: the share of permutations in which the largest statistic of this and all less
  conspicuous ones is at least the observed one.

Large sets are permuted in blocks of s images, formed within each set: moving blocks is moving images,
so the test stays exact, while its cost no longer grows with n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imsvd.errors import InputError
from imsvd.population.counting import Codes, Progress, check_codes, first_units, unit_counts

PERMUTATIONS = 999
MOST_BLOCKS = 2000
"""Blocks of the smaller set; more of them would not change a p-value visibly."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Homogeneity:
    """The result of the test.

    Attributes:
        counts: images that take each unit in the first and in the second set, (2, D).
        images: number of images of both sets.
        statistics: X² of every variable, (M,).
        p_value: overall p-value from the mean statistic.
        largest_p_value: overall p-value from the largest statistic instead.
        variable_p_values: adjusted p-values of variables, (M,).
        unit_scores: standardized change of every unit's share from first to second set, (D,).
        unit_p_values: adjusted p-values of units, (D,).
    """

    counts: NDArray[np.int64]
    images: tuple[int, int]
    statistics: NDArray[np.float64]
    p_value: float
    largest_p_value: float
    variable_p_values: NDArray[np.float64]
    unit_scores: NDArray[np.float64]
    unit_p_values: NDArray[np.float64]

    def shares(self) -> NDArray[np.float64]:
        """Return the share of images that take each unit, in both sets, (2, D)."""
        shares: NDArray[np.float64] = self.counts / np.array(self.images)[:, None]
        return shares


def compare_codes(
    first: Codes,
    second: Codes,
    units: tuple[int, ...],
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Homogeneity:
    """Test whether codes (n_a, M) and (n_b, M) have the same distribution."""
    if permutations < 1:
        raise InputError(f"permutations = {permutations}: choose at least 1.")
    for codes in (first, second):
        check_codes(codes, units, fewest=2)
    images = len(first), len(second)
    counts = np.stack([unit_counts(first, units), unit_counts(second, units)])
    permuted = _permuted_counts(first, second, units, permutations, seed, progress)
    starts, total = first_units(units)[:-1], counts.sum(axis=0)
    # The observed sets are one of the arrangements, which makes p-values valid for any number of them.
    observed_first = np.concatenate([counts[:1], permuted])
    change = _scores(observed_first, total, images)
    share = total / sum(images)
    # A score is standardized by the hypergeometric deviation; Pearson's terms are not.
    statistics = np.add.reduceat(change**2 * (1 - share), starts, axis=1) * sum(images)
    statistics /= sum(images) - 1
    freedom = np.maximum(np.add.reduceat(total > 0, starts) - 1, 0).astype(np.float64)
    mean = np.where(freedom > 0, (statistics - freedom) / np.sqrt(2 * np.maximum(freedom, 1)), 0)
    overall = _p_value(mean.mean(axis=1))
    comparable = _normal_scores(statistics, freedom)
    return Homogeneity(
        counts=counts,
        images=images,
        statistics=statistics[0],
        p_value=overall,
        largest_p_value=_p_value(comparable.max(axis=1)),
        variable_p_values=_step_down(comparable),
        unit_scores=-change[0],
        unit_p_values=_step_down(np.abs(change)),
    )


def _scores(
    counts: NDArray[np.int64], total: NDArray[np.int64], images: tuple[int, int]
) -> NDArray[np.float64]:
    """Return counts (P, D) of the first set minus their mean, in hypergeometric deviations."""
    n = sum(images)
    share = total / n
    variance = images[0] * images[1] / (n - 1) * share * (1 - share)
    deviation = np.sqrt(np.where(variance > 0, variance, 1))
    result: NDArray[np.float64] = (counts - images[0] * share) / deviation
    return result


def _normal_scores(
    statistics: NDArray[np.float64], freedom: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Make X² of different degrees of freedom comparable (Wilson and Hilferty's cube root)."""
    known = np.maximum(freedom, 1)
    spread = 2 / (9 * known)
    scores: NDArray[np.float64] = (np.cbrt(statistics / known) - (1 - spread)) / np.sqrt(spread)
    return np.where(freedom > 0, scores, -np.inf)


def _p_value(values: NDArray[np.float64]) -> float:
    """Return the share of values that are at least the first, itself included."""
    return float((values >= values[0] - _ROUNDING).mean())


def _step_down(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Westfall and Young's adjusted p-values (K,) of values (P, K), the observed ones first."""
    order = np.argsort(-values[0], kind="stable")
    largest = np.maximum.accumulate(values[:, order[::-1]], axis=1)[:, ::-1]
    shares = (largest >= largest[0] - _ROUNDING).mean(axis=0)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(shares)
    return adjusted


def _permuted_counts(
    first: Codes,
    second: Codes,
    units: tuple[int, ...],
    permutations: int,
    seed: int,
    progress: Progress | None,
) -> NDArray[np.int64]:
    """Return the counts (P, D) of the first set after each permutation."""
    swapped = len(second) < len(first)
    small, large = (second, first) if swapped else (first, second)
    size = -(-len(small) // MOST_BLOCKS)
    random = np.random.default_rng(seed)
    moved = [_blocks(codes, units, size, random) for codes in (small, large)]
    pooled, starts = np.concatenate(moved), first_units(units)[:-1]
    # Images that fill no block keep their place.
    fixed = unit_counts(small, units) - moved[0].sum(axis=0, dtype=np.int64) if size > 1 else 0
    found = np.empty((permutations, sum(units)), dtype=np.int64)
    for number in range(permutations):
        rows = pooled[random.choice(len(pooled), len(moved[0]), replace=False, shuffle=False)]
        if size > 1:
            found[number] = rows.sum(axis=0, dtype=np.int64) + fixed
        else:
            found[number] = np.bincount((rows + starts).ravel(), minlength=sum(units))
        if progress is not None and number % 50 == 49:
            progress(number + 1, permutations)
    return unit_counts(first, units) + unit_counts(second, units) - found if swapped else found


def _blocks(
    codes: Codes, units: tuple[int, ...], size: int, random: np.random.Generator
) -> NDArray[np.integer[Any]]:
    """Return counts (blocks, D) of random blocks of `size` images, or the codes if that is 1."""
    if size == 1:
        return codes
    order = random.permutation(len(codes))[: len(codes) // size * size].reshape(-1, size)
    return np.stack([unit_counts(codes[block], units) for block in order])
