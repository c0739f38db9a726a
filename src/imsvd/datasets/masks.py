"""A mask as annotations spell it: its box, its outline as polygons, its run lengths.

Coordinates are those of COCO: x to the right, y downwards, pixel (x, y) covering the square from
(x, y) to (x + 1, y + 1).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Point = tuple[int, int]


class Box(NamedTuple):
    """The pixels from `left` up to but without `right`, `top` up to but without `bottom`."""

    left: int
    top: int
    right: int
    bottom: int


def bounding_box(mask: Mask) -> Box:
    """The smallest box around the pixels of `mask` (height, width), of which there is at least one."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def run_lengths(mask: Mask) -> dict[str, Any]:
    """COCO's uncompressed RLE: pixels off, on, off, …, column by column from the left."""
    pixels = mask.ravel(order="F")
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    counts = np.diff(np.concatenate(([0], changes, [pixels.size]))).tolist()
    return {"counts": [0, *counts] if pixels[0] else counts, "size": list(mask.shape)}


def polygons(mask: Mask) -> list[list[int]] | None:
    """The outlines of `mask` along the edges of its pixels, [x, y, x, y, …] for every part.

    Filled again, they give exactly the mask. None if a part has a hole, which COCO's polygons
    cannot say. Pixels that touch only at a corner are separate parts.
    """
    loops = _loops(_boundary(mask))
    if any(_signed_area(loop) < 0 for loop in loops):
        return None
    return [[value for point in _corners(loop) for value in point] for loop in loops]


def segmentation(mask: Mask) -> list[list[int]] | dict[str, Any]:
    """Polygons where they can say it, else run lengths."""
    outlines = polygons(mask)
    return run_lengths(mask) if outlines is None else outlines


def _boundary(mask: Mask) -> dict[Point, list[Point]]:
    """Every unit step along an edge, by where it starts, the inside to the right of the walker."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    # For every side of a pixel: the neighbor across it, and the corners the step leads between.
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
    """Join all steps to closed walks; where two cross, each turns right and stays with its part."""
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
    """Remove and return the step to go on with from `here`."""
    ways = steps[here]
    right = None if before is None else _right_turn(before, here)
    chosen = right if right in ways else ways[0]
    ways.remove(chosen)
    if not ways:
        del steps[here]
    return chosen


def _would_continue(steps: dict[Point, list[Point]], before: Point, here: Point) -> bool:
    """Whether a walk that is back at its start only touches itself there."""
    return _right_turn(before, here) in steps.get(here, [])


def _right_turn(before: Point, here: Point) -> Point:
    step_x, step_y = here[0] - before[0], here[1] - before[1]
    return here[0] - step_y, here[1] + step_x


def _corners(loop: list[Point]) -> list[Point]:
    """A closed walk without the points where it goes straight on."""
    around = zip(loop[-1:] + loop[:-1], loop, loop[1:] + loop[:1], strict=True)
    return [
        here
        for before, here, after in around
        if (here[0] - before[0], here[1] - before[1]) != (after[0] - here[0], after[1] - here[1])
    ]


def _signed_area(loop: list[Point]) -> float:
    """The area enclosed; negative if the outside is, as around a hole."""
    x, y = np.array(loop).T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
