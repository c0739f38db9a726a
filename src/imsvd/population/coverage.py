"""Units and pairs of units that are missing or crowded.

A unit is compared with even use: n / D_m of n images for a variable of D_m units. A pair of units of
two variables is compared with independence: e = n_u n_v / n images, where n_u and n_v images take each
of them. How improbable the observed number k is follows from the exact distribution: binomial for
units, hypergeometric for pairs. Both are log-concave, so that the tail is at most a geometric series,

    P(X ≤ k) ≤ p(k) / (1 - p(k-1) / p(k)),

and likewise upward. The bound is a few percent above the exact tail where it matters. Both tails
count, so the smaller one is doubled. Benjamini and Yekutieli's procedure holds the expected share of
false findings below the level, however the findings depend on each other; if nothing is missing or
crowded, the chance that anything is reported stays below the level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imsvd.errors import InputError
from imsvd.population.counting import Codes, Progress, check_codes, first_units, pair_counts

LEVEL = 0.05


@dataclass(frozen=True)
class UnitUse:
    """A unit whose number of images differs from even use; negative `surplus` means images missing."""

    variable: int
    unit: int
    images: int
    expected: float
    p_value: float

    @property
    def surplus(self) -> float:
        """Images beyond the expected number."""
        return self.images - self.expected

    @property
    def ratio(self) -> float:
        """Images divided by the expected number."""
        return self.images / self.expected


@dataclass(frozen=True)
class PairUse(UnitUse):
    """A pair of units whose number of common images differs from independence."""

    other_variable: int
    other_unit: int


@dataclass(frozen=True)
class Coverage:
    """What is missing and what is crowded, by the number of images missing or in surplus.

    Attributes:
        images: number of images.
        tested_units: number of units tested.
        tested_pairs: number of pairs tested: units of two variables, both in use.
        units: units that differ from even use, largest difference first.
        pairs: pairs that differ from independence, largest difference first.
    """

    images: int
    tested_units: int
    tested_pairs: int
    units: tuple[UnitUse, ...]
    pairs: tuple[PairUse, ...]


def measure_coverage(
    codes: Codes,
    units: tuple[int, ...],
    *,
    level: float = LEVEL,
    progress: Progress | None = None,
) -> Coverage:
    """Find units and pairs of units of codes (n, M) that are missing or crowded at `level`."""
    check_codes(codes, units, fewest=2)
    if not 0 < level < 1:
        raise InputError(f"level = {level}: choose a number between 0 and 1, such as 0.05.")
    counts = pair_counts(codes, units, progress)
    # log k! of every k up to n; an exact table is faster than any approximation.
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, len(codes) + 1)))])
    single = _single(counts, units, len(codes), factorials, level)
    tested, pairs = _pairs(counts, units, len(codes), factorials, level)
    return Coverage(len(codes), sum(units), tested, single, pairs)


def _single(
    counts: NDArray[np.int64],
    units: tuple[int, ...],
    images: int,
    factorials: NDArray[np.float64],
    level: float,
) -> tuple[UnitUse, ...]:
    taken, sizes = np.diag(counts), np.repeat(units, units)
    expected = images / sizes

    def log_probability(k: NDArray[np.int64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            others = np.where(k < images, (images - k) * np.log1p(-1 / sizes), 0.0)
        choices = factorials[images] - factorials[k] - factorials[images - k]
        result: NDArray[np.float64] = choices - k * np.log(sizes) + others
        return result

    p_values = _two_sided(log_probability, taken, expected, np.full_like(taken, images), 0 * taken)
    p_values = np.where(sizes > 1, p_values, 1.0)
    adjusted = _adjusted(p_values, len(p_values))
    variables = np.repeat(np.arange(len(units)), units)
    numbers = np.arange(len(taken)) - first_units(units)[variables]
    found = [
        UnitUse(
            int(variables[i]),
            int(numbers[i]),
            int(taken[i]),
            float(expected[i]),
            float(adjusted[i]),
        )
        for i in np.flatnonzero(adjusted <= level)
    ]
    return tuple(sorted(found, key=lambda use: -abs(use.surplus)))


def _pairs(
    counts: NDArray[np.int64],
    units: tuple[int, ...],
    images: int,
    factorials: NDArray[np.float64],
    level: float,
) -> tuple[int, tuple[PairUse, ...]]:
    taken, first = np.diag(counts), first_units(units)
    variables = np.repeat(np.arange(len(units)), units)
    # Pairs are tested variable by variable: all at once would need many times the memory of the counts.
    rows, columns, p_values = [], [], []
    for variable in range(len(units) - 1):
        own = np.arange(first[variable], first[variable + 1])
        grid = np.meshgrid(own, np.arange(first[variable + 1], first[-1]), indexing="ij")
        a, b = (side.ravel() for side in grid)
        # A pair with a constant or an unused unit can have only one number of images.
        free = (taken[a] % images > 0) & (taken[b] % images > 0)
        a, b = a[free], b[free]
        rows.append(a)
        columns.append(b)
        p_values.append(_pair_p_values(counts[a, b], taken[a], taken[b], images, factorials))
    if not rows or not sum(map(len, rows)):
        return 0, ()
    a, b, p = np.concatenate(rows), np.concatenate(columns), np.concatenate(p_values)
    adjusted = _adjusted(p, len(p))
    found = np.flatnonzero(adjusted <= level)
    expected = taken[a] * (taken[b] / images)
    found = found[np.argsort(-np.abs(counts[a, b] - expected)[found], kind="stable")]
    return len(p), tuple(
        PairUse(
            variable=int(variables[a[i]]),
            unit=int(a[i] - first[variables[a[i]]]),
            images=int(counts[a[i], b[i]]),
            expected=float(expected[i]),
            p_value=float(adjusted[i]),
            other_variable=int(variables[b[i]]),
            other_unit=int(b[i] - first[variables[b[i]]]),
        )
        for i in found
    )


def _pair_p_values(
    both: NDArray[np.int64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    images: int,
    factorials: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Bound two-sided hypergeometric p-values of common counts `both` of units with a and b images."""
    fixed = (
        factorials[a]
        + factorials[images - a]
        + factorials[b]
        + factorials[images - b]
        - factorials[images]
    )

    def log_probability(k: NDArray[np.int64]) -> NDArray[np.float64]:
        cells = (
            factorials[k] + factorials[a - k] + factorials[b - k] + factorials[images - a - b + k]
        )
        result: NDArray[np.float64] = fixed - cells
        return result

    least, most = np.maximum(0, a + b - images), np.minimum(a, b)
    return _two_sided(log_probability, both, a * (b / images), most, least)


def _two_sided(
    log_probability: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    k: NDArray[np.int64],
    expected: NDArray[np.float64],
    most: NDArray[np.int64],
    least: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Bound two-sided p-values of k by a geometric series away from the expected number."""
    beyond = np.where(k < expected, k - 1, k + 1)
    possible = (beyond >= least) & (beyond <= most)
    here = log_probability(k)
    there = np.where(possible, log_probability(np.clip(beyond, least, most)), -np.inf)
    ratio = np.exp(np.minimum(there - here, 0.0))
    with np.errstate(divide="ignore"):
        tail = np.where(ratio < 1, np.exp(here) / (1 - ratio), np.inf)
    result: NDArray[np.float64] = np.minimum(1.0, 2 * tail)
    return result


def _adjusted(p_values: NDArray[np.float64], tests: int) -> NDArray[np.float64]:
    """Return Benjamini and Yekutieli's adjusted p-values; they hold under any dependence."""
    order = np.argsort(p_values, kind="stable")
    factor = tests * float((1 / np.arange(1, tests + 1)).sum())
    steps = p_values[order] * factor / np.arange(1, tests + 1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(steps[::-1])[::-1])
    return adjusted
