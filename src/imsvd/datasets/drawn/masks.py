"""Masks as annotations describe them: bounding boxes, polygons and run lengths.

Coordinates are COCO's: x to the right, y down; pixel (x, y) covers the square from (x, y) to
(x + 1, y + 1).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Point = tuple[int, int]


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
    loops = _loops(_boundary(mask))
    if any(_signed_area(loop) < 0 for loop in loops):
        return None
    return [[value for point in _corners(loop) for value in point] for loop in loops]


def segmentation(mask: Mask) -> list[list[int]] | dict[str, Any]:
    """Return polygons, or run lengths if the mask has holes."""
    outlines = polygons(mask)
    return run_lengths(mask) if outlines is None else outlines


def _boundary(mask: Mask) -> dict[Point, list[Point]]:
    """Return all unit steps along edges, by starting point, with the inside on the right."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    # For each side of a pixel: the neighbor across it, and the start and end of the step.
    sides = (
        (padded[:-2, 1:-1], (0, 0), (1, 0)),
        (padded[1:-1, 2:], (1, 0), (1, 1)),
        (padded[2:, 1:-1], (1, 1), (0, 1)),
        (padded[1:-1, :-2], (0, 1), (0, 0)),
    )
    steps: dict[Point, list[Point]] = {}
    for neighbor, (start_x, start_y), (stop_x, stop_y) in sides:
        for y, x in np.argwhere(inside & ~neighbor).tolist():
            steps.setdefault((x + start_x, y + start_y), []).append((x + stop_x, y + stop_y))
    return steps


def _loops(steps: dict[Point, list[Point]]) -> list[list[Point]]:
    """Join all steps into closed loops; where two meet, each turns right and stays with its part."""
    loops = []
    while steps:
        start = next(iter(steps))
        loop = [start]
        here = _take(steps, start, None)
        while here != start or _would_continue(steps, loop[-1], here):
            loop.append(here)
            here = _take(steps, here, loop[-2])
        loops.append(loop)
    return loops


def _take(steps: dict[Point, list[Point]], here: Point, before: Point | None) -> Point:
    """Remove and return the next step from `here`."""
    ways = steps[here]
    right = None if before is None else _right_turn(before, here)
    chosen = right if right in ways else ways[0]
    ways.remove(chosen)
    if not ways:
        del steps[here]
    return chosen


def _would_continue(steps: dict[Point, list[Point]], before: Point, here: Point) -> bool:
    """Return whether a loop that is back at its start only touches itself there."""
    return _right_turn(before, here) in steps.get(here, [])


def _right_turn(before: Point, here: Point) -> Point:
    step_x, step_y = here[0] - before[0], here[1] - before[1]
    return here[0] - step_y, here[1] + step_x


def _corners(loop: list[Point]) -> list[Point]:
    """Drop the points at which a loop does not turn."""
    around = zip(loop[-1:] + loop[:-1], loop, loop[1:] + loop[:1], strict=True)
    return [
        here
        for before, here, after in around
        if (here[0] - before[0], here[1] - before[1]) != (after[0] - here[0], after[1] - here[1])
    ]


def _signed_area(loop: list[Point]) -> float:
    """Return the enclosed area, negative for the outline of a hole."""
    x, y = np.array(loop).T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
