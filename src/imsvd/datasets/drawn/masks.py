"""Masks as annotations describe them: bounding boxes, polygons and run lengths.

Coordinates are COCO's: x to the right, y down; pixel (x, y) covers the square from (x, y) to
(x + 1, y + 1).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Point = tuple[int, int]
Edge = tuple[Point, Point]
"""Start and direction of a step."""


class Box(NamedTuple):
    """The pixels from `left` to `right` and `top` to `bottom`, upper ends excluded."""

    left: int
    top: int
    right: int
    bottom: int


def bounding_box(mask: Mask) -> Box:
    """Return the smallest box around a mask (height, width) of at least one pixel."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def run_lengths(mask: Mask) -> dict[str, Any]:
    """Return COCO's uncompressed RLE: runs of pixels off, on, off, …, column by column."""
    pixels = mask.ravel(order="F")
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    counts = np.diff(np.concatenate(([0], changes, [pixels.size]))).tolist()
    return {"counts": [0, *counts] if pixels[0] else counts, "size": list(mask.shape)}


def polygons(mask: Mask) -> list[list[int]] | None:
    """Trace the edges of a mask, [x, y, x, y, …] for every part.

    Filling the polygons gives exactly the mask. Returns None if a part has a hole, which COCO's
    polygons cannot express. Pixels that touch only at a corner belong to separate parts.
    """
    edges = _edges(mask)
    outlines = []
    while edges:
        outline = _trace(edges)
        x, y = np.array(outline).T
        if x @ np.roll(y, -1) < y @ np.roll(x, -1):  # runs the other way around, as holes do
            return None
        outlines.append([value for corner in outline for value in corner])
    return outlines


def segmentation(mask: Mask) -> list[list[int]] | dict[str, Any]:
    """Return polygons, or run lengths if the mask has holes."""
    outlines = polygons(mask)
    return run_lengths(mask) if outlines is None else outlines


def _edges(mask: Mask) -> dict[Edge, None]:
    """Return the edges of a mask as unit steps with the inside on the right, in a fixed order."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    # For each side of a pixel: the neighbor across it, where the step starts, and its direction.
    sides = (
        (padded[:-2, 1:-1], (0, 0), (1, 0)),
        (padded[1:-1, 2:], (1, 0), (0, 1)),
        (padded[2:, 1:-1], (1, 1), (-1, 0)),
        (padded[1:-1, :-2], (0, 1), (0, -1)),
    )
    return {
        ((x + start_x, y + start_y), direction): None
        for neighbor, (start_x, start_y), direction in sides
        for y, x in np.argwhere(inside & ~neighbor).tolist()
    }


def _trace(edges: dict[Edge, None]) -> list[Point]:
    """Remove one closed outline from `edges` and return its corners."""
    first = edge = next(iter(edges))
    corners = []
    while edge in edges:
        del edges[edge]
        (x, y), (step_x, step_y) = edge
        here = x + step_x, y + step_y
        # Turning right where parts touch at a corner keeps them separate.
        turns = ((-step_y, step_x), (step_x, step_y), (step_y, -step_x))
        edge = next(way for turn in turns if (way := (here, turn)) in edges or way == first)
        if edge[1] != (step_x, step_y):
            corners.append(here)
    return corners[-1:] + corners[:-1]
