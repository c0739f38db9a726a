"""Small whole numbers of many images as bit planes, from which sets of images are computed.

A variable of D units takes ceil(log2 D) planes. Plane b holds bit b of every image's unit, eight
images a byte. The set of images with a given unit is the AND of a variable's planes, some of them
inverted: 5 operations on 125 kB for 32 units and a million images. A stored bitmap for each unit would
answer no faster and take 2 bytes per image and variable at 32 units, where planes take 5 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.unsignedinteger[Any]]

LEVELS = np.array(
    [
        *(number / 100 for number in range(5, 50, 5)),
        *(number / 100 for number in range(50, 100)),
        0.995,
        0.999,
    ],
    dtype=np.float32,
)
"""Confidences are kept as the number of these levels that they exceed, so that a comparison with a
level is exact."""

LEVEL_PLANES = 6
"""Planes of a confidence: 61 levels make 62 values."""


def planes_needed(values: int) -> int:
    """Return how many planes hold whole numbers below `values`."""
    return max(1, (values - 1).bit_length())


def pack(numbers: NDArray[Any], planes: int) -> Bytes:
    """Return the planes (planes, ceil(n / 8)) of whole numbers (n,), lowest bit first."""
    bits = (numbers[None, :] >> np.arange(planes, dtype=numbers.dtype)[:, None]) & 1
    return np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")


def unpack(planes: Bytes | Sequence[Bytes], count: int) -> Numbers:
    """Return the `count` numbers of planes (planes, ceil(count / 8))."""
    kinds = (np.uint8, np.uint16, np.uint32)
    dtype = next(np.dtype(kind) for kind in kinds if len(planes) <= 8 * np.dtype(kind).itemsize)
    numbers: Numbers = np.zeros(count, dtype=dtype)
    for plane in planes[::-1]:
        numbers += numbers  # NumPy adds bytes many times as fast as it shifts them
        numbers |= np.unpackbits(plane, count=count, bitorder="little")
    return numbers


def number_at(planes: Bytes, row: int) -> int:
    """Return the number of one image."""
    bits = planes[:, row // 8] >> (row % 8) & 1
    return int((bits.astype(np.int64) << np.arange(len(bits))).sum())


def equal_to(planes: Bytes, number: int) -> Bytes:
    """Return the set of images whose number is `number`, (ceil(n / 8),); bits after the last are arbitrary."""
    if number >> len(planes):
        return np.zeros_like(planes[0])
    chosen = [plane if number >> place & 1 else ~plane for place, plane in enumerate(planes)]
    found: Bytes = chosen[0].copy()
    for plane in chosen[1:]:
        found &= plane
    return found


def at_least(planes: Bytes, number: int) -> Bytes:
    """Return the set of images whose number is `number` or more; bits after the last are arbitrary."""
    more: Bytes = np.zeros_like(planes[0])
    if number >> len(planes):
        return more
    # From the highest bit down, `same` holds the images that agree with `number` so far.
    same = np.full_like(planes[0], 255)
    for place in reversed(range(len(planes))):
        if number >> place & 1:
            same &= planes[place]
        else:
            more |= same & planes[place]
            same &= ~planes[place]
    more |= same
    return more


def members(found: Bytes, count: int) -> NDArray[np.bool_]:
    """Return a set of `count` images as one truth value each."""
    return np.unpackbits(found, count=count, bitorder="little").view(np.bool_)


def level_of(confidence: NDArray[np.floating[Any]]) -> Bytes:
    """Return the number of `LEVELS` that each confidence exceeds."""
    return np.searchsorted(LEVELS, confidence, side="left").astype(np.uint8)


def confidence_at(levels: Numbers) -> NDArray[np.float32]:
    """Return the middle of the interval that a kept confidence stands for."""
    edges = np.concatenate(([0.0], LEVELS, [1.0]))
    middles = ((edges[:-1] + edges[1:]) / 2).astype(np.float32)
    chosen: NDArray[np.float32] = middles[levels]
    return chosen
