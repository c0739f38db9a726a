"""Average precision of a ranking, as Pascal VOC defines it.

Images with the same score share a rank: precision and recall are taken only where the score
changes, so that the result does not depend on the order of the images.

http://host.robots.ox.ac.uk/pascal/VOC/voc2007/devkit_doc_07-Jun-2007.pdf, section 3.4.1.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LEVELS = 10
"""Recall is looked at in this many steps from 0 to 1."""


class _Curve(NamedTuple):
    """Hits and images above every distinct score, best first, (thresholds,) each."""

    hits: NDArray[np.int64]
    images: NDArray[np.int64]


def eleven_point_average_precision(
    scores: NDArray[np.floating], positives: NDArray[np.bool_]
) -> float:
    """The mean over recalls r = 0, 0.1, …, 1 of the best precision at recall r or more (VOC 2007).

    Args:
        scores: (n,), higher for what should be positive.
        positives: (n,), of which at least one is true.
    """
    curve = _curve(scores, positives)
    envelope = _best_from_here(curve)
    total = 0.0
    for level in range(_LEVELS + 1):
        # In whole numbers: a recall of 3/10 is not below 0.3 for being rounded.
        reached = _LEVELS * curve.hits >= level * curve.hits[-1]
        total += envelope[int(np.argmax(reached))]
    return total / (_LEVELS + 1)


def all_point_average_precision(
    scores: NDArray[np.floating], positives: NDArray[np.bool_]
) -> float:
    """The area under the best precision at every recall or more (VOC from 2010 on).

    Args:
        scores: (n,), higher for what should be positive.
        positives: (n,), of which at least one is true.
    """
    curve = _curve(scores, positives)
    gained = np.diff(curve.hits, prepend=0) / curve.hits[-1]
    return float(gained @ _best_from_here(curve))


def _curve(scores: NDArray[np.floating], positives: NDArray[np.bool_]) -> _Curve:
    if scores.shape != positives.shape or scores.ndim != 1:
        raise ValueError(f"{scores.shape} scores for {positives.shape} labels")
    if not positives.any():
        raise ValueError("the average precision of a class without positive images is not defined")
    if not np.isfinite(scores).all():
        raise ValueError("scores that are not finite cannot be ranked")
    order = np.argsort(-scores)
    last_of_rank = np.append(np.diff(scores[order]) != 0, True)
    hits = np.cumsum(positives[order])[last_of_rank]
    return _Curve(hits, np.flatnonzero(last_of_rank) + 1)


def _best_from_here(curve: _Curve) -> NDArray[np.float64]:
    """The best precision at a threshold or any lower one, (thresholds,)."""
    precision = curve.hits / curve.images
    return np.asarray(np.maximum.accumulate(precision[::-1])[::-1])
