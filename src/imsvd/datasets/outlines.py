"""Signed distances to the outlines of `shapes`: negative inside, near enough exact at the edge.

Every function takes points in the shape's own coordinates, (n, size, size) each, y downwards, and
returns distances of the same shape. All outlines lie within the unit circle.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]


def _length(u: Field, v: Field) -> Field:
    return np.sqrt(u * u + v * v)


def _circle(u: Field, v: Field) -> Field:
    return _length(u, v) - np.float32(0.9)


def _square(u: Field, v: Field) -> Field:
    return np.maximum(np.abs(u), np.abs(v)) - np.float32(0.75)


def _triangle(u: Field, v: Field) -> Field:
    side = np.float32(np.sqrt(3) / 2) * np.abs(u) - np.float32(0.5) * v
    return np.maximum(side, v) - np.float32(0.5)


def _star(u: Field, v: Field) -> Field:
    # Fold the plane onto half an arm pointing up, then measure from the arm's straight flank.
    sector = np.float32(2 * np.pi / 5)
    angle = np.arctan2(u, -v)
    angle = np.abs(angle - sector * np.rint(angle / sector))
    radius = _length(u, v)
    along, aside = radius * np.cos(angle), radius * np.sin(angle)
    notch_along, notch_aside = 0.44 * np.cos(np.pi / 5), 0.44 * np.sin(np.pi / 5)
    norm = np.hypot(1 - notch_along, notch_aside)
    normal = np.array([notch_aside, 1 - notch_along], dtype=np.float32) / np.float32(norm)
    return np.asarray(normal[0] * (along - np.float32(1)) + normal[1] * aside)


def _cross(u: Field, v: Field) -> Field:
    u, v = np.abs(u), np.abs(v)
    reach, width = np.float32(0.92), np.float32(0.32)
    upright = np.maximum(u - width, v - reach)
    return np.asarray(np.minimum(upright, np.maximum(u - reach, v - width)))


def _ring(u: Field, v: Field) -> Field:
    return np.asarray(np.abs(_length(u, v) - np.float32(0.66)) - np.float32(0.27))


def _heart(u: Field, v: Field) -> Field:
    # After Inigo Quilez: two arcs on a square standing on its corner.
    scale = np.float32(0.62)
    u, v = np.abs(u) * scale, np.float32(0.55) - v * scale
    lobe = _length(u - np.float32(0.25), v - np.float32(0.75)) - np.float32(np.sqrt(2) / 4)
    foot = np.float32(0.5) * np.maximum(u + v, 0)
    flank = np.minimum(_length(u, v - 1), _length(u - foot, v - foot)) * np.sign(u - v)
    return np.asarray(np.where(u + v > 1, lobe, flank) / scale, dtype=np.float32)


def _crescent(u: Field, v: Field) -> Field:
    disc = _length(u, v) - np.float32(0.95)
    bite = np.float32(0.74) - _length(u - np.float32(0.5), v + np.float32(0.12))
    return np.asarray(np.maximum(disc, bite))


OUTLINES: dict[str, Callable[[Field, Field], Field]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "heart": _heart,
    "crescent": _crescent,
}
