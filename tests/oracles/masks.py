"""Masks from COCO's two spellings, one pixel at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def fill_run_lengths(counts: Sequence[int], height: int, width: int) -> NDArray[np.bool_]:
    """Pixels off, on, off, …, down the columns from the left."""
    mask = np.zeros((height, width), dtype=np.bool_)
    position, value = 0, False
    for count in counts:
        for _ in range(count):
            column, row = divmod(position, height)
            mask[row, column] = value
            position += 1
        value = not value
    assert position == height * width
    return mask


def fill_polygon(points: Sequence[int], height: int, width: int) -> NDArray[np.bool_]:
    """Pixels whose center has an odd number of upright edges to its left."""
    corners = list(zip(points[::2], points[1::2], strict=True))
    mask = np.zeros((height, width), dtype=np.bool_)
    for row in range(height):
        for column in range(width):
            crossings = 0
            for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
                assert x1 == x2 or y1 == y2, "the edges of pixels are straight"
                if x1 == x2 and x1 <= column and min(y1, y2) <= row < max(y1, y2):
                    crossings += 1
            mask[row, column] = crossings % 2 == 1
    return mask
