"""Joint matrix, mutual information, Grad-CAM and spanning trees, written as their definitions say."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def joint_matrix(q1: Array, q2: Array) -> Array:
    """P^c (Eq. 10), one image and one cell at a time."""
    count, width = q1.shape
    matrix = np.zeros((width, width))
    for i in range(count):
        for a in range(width):
            for b in range(width):
                matrix[a, b] += q1[i, a] * q2[i, b] / count
    return matrix


def mutual_information(matrix: Array, units: Sequence[int]) -> Array:
    """Σ P log(P / (p' p'')) of every block."""
    starts = [sum(units[:m]) for m in range(len(units))]
    result = np.zeros((len(units), len(units)))
    for a, b in itertools.product(range(len(units)), repeat=2):
        block = matrix[starts[a] : starts[a] + units[a], starts[b] : starts[b] + units[b]]
        for d1 in range(units[a]):
            for d2 in range(units[b]):
                p = block[d1, d2]
                if p > 0:
                    result[a, b] += p * math.log(p / (block[d1].sum() * block[:, d2].sum()))
    return result


def off_block_deviation(matrix: Array, units: Sequence[int]) -> Array:
    """|P D_m1 D_m2 - 1| of every cell off the diagonal blocks, as a flat list."""
    variable = [m for m, size in enumerate(units) for _ in range(size)]
    cells = [
        abs(matrix[a, b] * units[variable[a]] * units[variable[b]] - 1)
        for a in range(len(variable))
        for b in range(len(variable))
        if variable[a] != variable[b]
    ]
    return np.array(cells)


def top_images(q: Array, count: int) -> list[list[int]]:
    """For every unit the images in falling order of q, equals in rising order of position."""
    return [
        sorted(range(len(q)), key=lambda i, d=d: (-q[i, d], i))[:count]  # type: ignore[misc]
        for d in range(q.shape[1])
    ]


def pooled_grad_cam(
    maps: Array, weights: Array, units: Sequence[int], place: int, *, log_probability: bool
) -> Array:
    """Grad-CAM of one image whose logits are `weights` times the mean of its `maps`.

    The gradient is written out by hand: a logit's with respect to any pixel of channel c is
    weights[place, c] / pixels; a log-probability's has the mean of its variable's rows, weighted by
    q, taken away.

    Args:
        maps: (channels, rows, columns) last spatial features.
        weights: (width, channels) of the projector.
        units: units of each variable.
        place: the unit, counted over all variables.
        log_probability: which of the two is differentiated.
    """
    channels, rows, columns = maps.shape
    pixels = rows * columns
    direction = weights[place].copy()
    if log_probability:
        logits = [
            sum(weights[d, c] * maps[c].sum() / pixels for c in range(channels))
            for d in range(len(weights))
        ]
        start = 0
        for size in units:
            if start <= place < start + size:
                powers = [math.exp(logits[d]) for d in range(start, start + size)]
                for d in range(start, start + size):
                    direction -= powers[d - start] / sum(powers) * weights[d]
            start += size
    evidence = np.zeros((rows, columns))
    for y in range(rows):
        for x in range(columns):
            total = 0.0
            for c in range(channels):
                total += direction[c] / pixels * maps[c, y, x]
            evidence[y, x] = max(0.0, total)
    return evidence / evidence.max() if evidence.max() > 0 else evidence


def heaviest_tree(weights: Array) -> float:
    """The weight of the heaviest spanning tree, by trying every set of edges."""
    count = len(weights)
    edges = list(itertools.combinations(range(count), 2))
    best = -math.inf
    for chosen in itertools.combinations(edges, count - 1):
        group = list(range(count))
        for a, b in chosen:
            old, new = group[a], group[b]
            group = [new if value == old else value for value in group]
        if len(set(group)) == 1:
            best = max(best, float(sum(weights[a, b] for a, b in chosen)))
    return best
