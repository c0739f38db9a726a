"""How discrete the codes are, how evenly units are used, and how many bits they really hold.

The entropy of a whole code cannot be estimated from images alone: n images show at most log2 n bits.
Two numbers bracket it instead.

- Lower: the plug-in entropy of the observed codes. It never exceeds log2 n and is biased downwards.
- Upper: the entropy of the Chow-Liu tree, Σ H(m) less the mutual information along the tree of pairs
  that share most. Leaving out further dependence can only add entropy. Its entropies are corrected
  by Miller and Madow's (K - 1) / 2n for K occupied cells, which still falls short where many cells
  were never met; what pairs share once one of the two is shuffled is therefore taken off as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from imsvd.explanations.encodings import Encodings
from imsvd.explanations.subject import Progress, evenly_spaced
from imsvd.information import dead_units

OVERUSED = 3.0
"""A unit is over-used when its share exceeds the even one this many times."""

PAPER_SHARES = {"0.9": 0.9118, "0.99": 0.8125}
_MAX_IMAGES_FOR_PAIRS = 50_000
_SHUFFLES = 4
"""How often a pair is shuffled: the tree picks pairs whose luck was told too low, the fewer the more."""

Codes = NDArray[np.integer[Any]]


class CodeEntropy(NamedTuple):
    """Bits of a code: what M variables could hold, and the bracket around what they do."""

    capacity: float
    marginal_sum: float
    upper: float
    lower: float
    distinct_codes: int


def entropy_bits(counts: NDArray[np.integer[Any]]) -> float:
    """Entropy in bits of a histogram, with Miller and Madow's correction."""
    occupied = counts[counts > 0].astype(np.float64)
    total = occupied.sum()
    shares = occupied / total
    return float(-(shares * np.log2(shares)).sum() + (len(occupied) - 1) / (2 * total * np.log(2)))


def code_entropy(
    codes: Codes, units: tuple[int, ...], progress: Progress | None = None
) -> CodeEntropy:
    """Bracket the entropy of codes (n, M)."""
    # A row as one opaque value: sorting those is many times faster than sorting rows.
    whole = np.ascontiguousarray(codes).view(np.dtype((np.void, codes.dtype.itemsize * len(units))))
    counts = np.unique(whole, return_counts=True)[1]
    shares = counts / counts.sum()
    sample = codes[evenly_spaced(len(codes), _MAX_IMAGES_FOR_PAIRS)]
    single = [
        entropy_bits(np.bincount(sample[:, m], minlength=size)) for m, size in enumerate(units)
    ]
    lower = float(-(shares * np.log2(shares)).sum())
    tree = spanning_tree_weight(pairwise_bits(sample, units, single, progress))
    capacity = float(np.log2(units).sum())
    return CodeEntropy(
        capacity,
        min(capacity, sum(single)),
        max(lower, min(capacity, sum(single) - tree)),
        lower,
        len(counts),
    )


def pairwise_bits(
    codes: Codes, units: tuple[int, ...], single: list[float], progress: Progress | None = None
) -> NDArray[np.float64]:
    """Mutual information in bits of every two variables, (M, M); 0 where correction leaves nothing."""
    shared = np.zeros((len(units), len(units)))
    columns = np.ascontiguousarray(codes.T).astype(np.int64)
    random = np.random.default_rng(0)
    shuffles = [columns[:, random.permutation(len(codes))] for _ in range(_SHUFFLES)]

    def bits(a: int, b: int, second: NDArray[np.int64]) -> float:
        cells = np.bincount(columns[a] * units[b] + second, minlength=units[a] * units[b])
        return single[a] + single[b] - entropy_bits(cells)

    for a in range(len(units)):
        for b in range(a + 1, len(units)):
            # Luck depends on how evenly both are used, so that no other pair's would do.
            luck = sum(bits(a, b, shuffled[b]) for shuffled in shuffles) / _SHUFFLES
            excess = bits(a, b, columns[b]) - max(0.0, luck)
            shared[a, b] = shared[b, a] = max(0.0, excess)
        if progress is not None:
            # The first variables have most pairs left, so pairs are told, not variables.
            progress((a + 1) * (2 * len(units) - a - 2) // 2, len(units) * (len(units) - 1) // 2)
    return shared


def spanning_tree_weight(weights: NDArray[np.float64]) -> float:
    """Total weight of the heaviest tree that joins all nodes of (M, M) weights (Prim)."""
    best = weights[0].copy()
    outside = np.ones(len(weights), dtype=bool)
    outside[0] = False
    total = 0.0
    while outside.any():
        node = int(np.where(outside, best, -1.0).argmax())
        total += float(best[node])
        outside[node] = False
        best = np.maximum(best, weights[node])
    return total


def discreteness(
    encodings: Encodings, units: tuple[int, ...], progress: Progress | None = None
) -> dict[str, Any]:
    """Everything about discreteness as one JSON-ready record."""
    total = encodings.codes.size
    entropy = code_entropy(encodings.codes, units, progress)
    shares = encodings.marginals * np.repeat(units, units)
    dead = int(dead_units(torch.from_numpy(encodings.marginals), units))
    return {
        "images": len(encodings.codes),
        "variables": len(units),
        "units": sum(units),
        "share_above_0.9": float(encodings.above[0] / total),
        "share_above_0.99": float(encodings.above[1] / total),
        "paper_share_above_0.9": PAPER_SHARES["0.9"],
        "paper_share_above_0.99": PAPER_SHARES["0.99"],
        "dead_units": dead,
        "overused_units": int((shares > OVERUSED).sum()),
        "overused_means": f"mean q above {OVERUSED:g} times the even share",
        "dead_means": "mean q below 0.01 times the even share",
        "distinct_codes": entropy.distinct_codes,
        "bits": {
            "capacity": entropy.capacity,
            "sum_of_variables": entropy.marginal_sum,
            "upper": entropy.upper,
            "lower": entropy.lower,
            "upper_means": "Chow-Liu tree; Miller-Madow and what is shared by luck corrected",
            "lower_means": "plug-in entropy of whole codes, at most log2 of the images",
        },
        "histogram": encodings.histogram.tolist(),
        "mean_confidence": [
            round(float(value), 4) for value in encodings.confidence.mean(0, dtype=np.float64)
        ],
    }
