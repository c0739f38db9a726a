"""Answers of the explorer, computed by plain loops."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from imsvd.explanations.encodings import Encodings


def images_of_unit(encodings: Encodings, variable: int, unit: int) -> list[int]:
    """Return the images of a unit, most confident first, ties in image order."""
    found = [
        (-float(encodings.confidence[row, variable]), int(encodings.images[row]))
        for row in range(len(encodings.images))
        if encodings.codes[row, variable] == unit
    ]
    return [image for _, image in sorted(found)]


def neighbors_by_code(encodings: Encodings, image: int, count: int) -> list[tuple[int, int]]:
    """Return (image, shared units) of all others, most shared first, ties in image order."""
    images = encodings.images.tolist()
    own = encodings.codes[images.index(image)]
    found = [
        (-sum(int(a) == int(b) for a, b in zip(own, code, strict=True)), other)
        for other, code in zip(images, encodings.codes, strict=True)
        if other != image
    ]
    return [(other, -shared) for shared, other in sorted(found)[:count]]


def neighbors_by_features(
    encodings: Encodings, image: int, query: Sequence[float], count: int
) -> list[tuple[int, float]]:
    """Return (image, cosine) of all others with saved features, nearest first."""
    found = []
    for row, features in zip(encodings.feature_rows, encodings.features, strict=True):
        other = int(encodings.images[row])
        if other != image:
            found.append((_cosine(query, features.astype(np.float64)), other))
    return [(other, cosine) for cosine, other in sorted(found, reverse=True)[:count]]


def _cosine(first: Sequence[float], second: Sequence[float]) -> float:
    product = sum(float(a) * float(b) for a, b in zip(first, second, strict=True))
    lengths = [math.sqrt(sum(float(a) ** 2 for a in vector)) for vector in (first, second)]
    return product / (lengths[0] * lengths[1])


def mutual_information(first: Sequence[Any], second: Sequence[Any]) -> float:
    """Plug-in mutual information of two lists of values, nats."""
    total = len(first)
    pairs, left, right = Counter(zip(first, second, strict=True)), Counter(first), Counter(second)
    return sum(
        count / total * math.log(count * total / (left[a] * right[b]))
        for (a, b), count in pairs.items()
    )
