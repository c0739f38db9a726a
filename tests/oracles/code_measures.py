"""Purity, similarity, matching and recall of units, written as their definitions say."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ImageSet = set[int]


def image_sets(codes: NDArray[np.int64], units: Sequence[int]) -> list[ImageSet]:
    """The images that take each unit, variable by variable."""
    return [
        {i for i in range(len(codes)) if codes[i, m] == d}
        for m, size in enumerate(units)
        for d in range(size)
    ]


def active_sets(active: NDArray[np.bool_]) -> list[ImageSet]:
    """The images in which each unit is active."""
    return [{i for i in range(len(active)) if active[i, w]} for w in range(active.shape[1])]


def purity(images: ImageSet, labels: Sequence[int]) -> float:
    """The share of the most frequent label."""
    found = [labels[i] for i in images]
    return max(found.count(label) for label in found) / len(found)


def random_purity(size: int, labels: Sequence[int]) -> float:
    """The mean purity of all sets of `size` images."""
    sets = list(itertools.combinations(range(len(labels)), size))
    return sum(purity(set(images), labels) for images in sets) / len(sets)


def cosine(first: Array, second: Array) -> float:
    """The cosine of the angle between two vectors."""
    return float(first @ second / math.sqrt(float(first @ first) * float(second @ second)))


def similarity(images: ImageSet, features: Array) -> float:
    """The mean cosine of all pairs of images."""
    pairs = list(itertools.combinations(sorted(images), 2))
    return sum(cosine(features[i], features[j]) for i, j in pairs) / len(pairs)


def best_matching(first: Sequence[ImageSet], second: Sequence[ImageSet]) -> list[float]:
    """Jaccard overlaps of the best one-to-one matching of all, tried one by one; `first` is shorter."""
    jaccard = [
        [len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.0 for theirs in second]
        for ours in first
    ]
    assignments = itertools.permutations(range(len(second)), len(first))
    return max(([jaccard[a][b] for a, b in enumerate(each)] for each in assignments), key=sum)


def recall_in_every_order(
    shared: Sequence[Sequence[int]], cosines: Sequence[Sequence[float]], neighbors: int
) -> float:
    """Mean recall of the nearest by cosine, over queries and over all orders of the images searched.

    Sorting is stable, so that an order of the images decides all ties.
    """
    recalls = []
    for row, angles in zip(shared, cosines, strict=True):
        near = set(sorted(range(len(row)), key=lambda i, a=angles: -a[i])[:neighbors])  # type: ignore[misc]
        for order in itertools.permutations(range(len(row))):
            found = sorted(order, key=lambda i, r=row: -r[i])[:neighbors]  # type: ignore[misc]
            recalls.append(len(near & set(found)) / neighbors)
    return sum(recalls) / len(recalls)


def pair_information(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """I = Σ p(a, b) ln p(a, b) / p(a) p(b), less (d' - 1)(d'' - 1) / 2n for d' and d'' values seen."""
    count = len(first)
    total = 0.0
    for a in set(first.tolist()):
        for b in set(second.tolist()):
            both = ((first == a) & (second == b)).mean()
            if both:
                total += both * math.log(both / ((first == a).mean() * (second == b).mean()))
    freedom = (len(set(first.tolist())) - 1) * (len(set(second.tolist())) - 1)
    return float(total - freedom / (2 * count))
