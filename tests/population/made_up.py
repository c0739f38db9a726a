"""Codes with known dependence."""

import numpy as np
from numpy.typing import NDArray


def independent(images: int, units: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    """Return codes (images, variables) of independent variables with even units."""
    random = np.random.default_rng(seed)
    return np.stack([random.integers(0, size, images) for size in units], 1).astype(np.uint8)


def dependent(images: int, variables: int, units: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return codes of a chain: each variable repeats the one before it with probability 0.8."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, units, (images, variables))
    for variable in range(1, variables):
        same = random.random(images) < 0.8
        codes[same, variable] = codes[same, variable - 1]
    return codes.astype(np.uint8)
