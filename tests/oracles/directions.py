"""Directions in which images differ most compared with views of one image, as the definition has it."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

Floats = NDArray[np.float64]


def lasting_directions(features: Floats, count: int, shrinkage: float) -> tuple[Floats, Floats]:
    """Solve T v = s W v for `features` (images, views + 1, width), the plain image last.

    Returns:
        The ratios s, largest first, and the directions (width, count) with vᵀWv = 1.
    """
    views, plain = features[:, :-1], features[:, -1]
    total = np.cov(plain.T, bias=True)
    scatter = [np.cov(image.T, bias=False) for image in views]
    within = np.mean(scatter, axis=0)
    within = within + shrinkage * np.trace(within) / len(within) * np.eye(len(within))
    ratios, vectors = eigh(total, within)
    return ratios[::-1][:count], vectors[:, ::-1][:, :count]
