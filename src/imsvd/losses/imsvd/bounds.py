"""Reference values of the IMSVD loss, to tell at a glance whether a value is normal.

Four states have a closed form (Theorem 1 and its opposites), for any units per variable:

| state | diagonal entropy | off-diagonal entropy | invariance |
|---|---|---|---|
| ideal | -Σ ln D_m | -Σ (ln D_m1 + ln D_m2) | 0 |
| uniform | -Σ (2 / D_m) ln D_m | -Σ (ln D_m1 + ln D_m2) | mean ln D_m |
| collapsed | 0 | 0 | 0 |
| batch limit | -Σ min(ln D_m, ln N) | -Σ min(ln D_m1 + ln D_m2, ln N) | 0 |

Ideal: codes one-hot, evenly used and pairwise independent. Uniform: every q even, as at the start
of training. Collapsed: all samples one-hot on the same units. Batch limit: the best value that N
hard codes can reach, however good the network.

Single sums run over variables, double ones over ordered pairs of different variables; the
normalization of the loss scales both.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class TermValues(NamedTuple):
    """Terms as in `LossOutput.terms`, without weights, and their weighted `total`."""

    invariance: float
    diagonal_entropy: float
    off_diagonal_entropy: float
    total: float


class IMSVDBounds(NamedTuple):
    """Values of the loss in its four reference states."""

    ideal: TermValues
    uniform: TermValues
    collapsed: TermValues
    batch_limit: TermValues


class TermFactors(NamedTuple):
    """One number per term: its weight, the scale of its sum, or its value."""

    invariance: float
    diagonal_entropy: float
    off_diagonal_entropy: float


def imsvd_bounds(
    sizes: Sequence[int], batch_size: int, scales: TermFactors, weights: TermFactors
) -> IMSVDBounds:
    """Reference values for variables of `sizes` units and a global batch of `batch_size`."""

    def values(invariance: float, diagonal: float, off_diagonal: float) -> TermValues:
        sums = invariance, diagonal, off_diagonal
        terms = TermFactors(*(scale * value for scale, value in zip(scales, sums, strict=True)))
        total = sum(weight * term for weight, term in zip(weights, terms, strict=True))
        return TermValues(*terms, total=total)

    log_units = [math.log(size) for size in sizes]
    log_batch = math.log(batch_size)
    evenly_joint = _sum_over_pairs(sizes, limit=math.inf)
    return IMSVDBounds(
        ideal=values(0.0, -sum(log_units), -evenly_joint),
        uniform=values(
            sum(log_units) / len(sizes),
            -sum(2 * math.log(size) / size for size in sizes),
            -evenly_joint,
        ),
        collapsed=values(0.0, 0.0, 0.0),
        batch_limit=values(
            0.0,
            -sum(min(value, log_batch) for value in log_units),
            -_sum_over_pairs(sizes, limit=log_batch),
        ),
    )


def _sum_over_pairs(sizes: Sequence[int], limit: float) -> float:
    """Σ min(ln D_m1 + ln D_m2, limit) over ordered pairs of different variables."""
    counts = Counter(sizes)
    total = 0.0
    for first, first_count in counts.items():
        for second, second_count in counts.items():
            pairs = first_count * (second_count - (first == second))
            total += pairs * min(math.log(first) + math.log(second), limit)
    return total
