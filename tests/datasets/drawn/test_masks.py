import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from pycocotools import mask as coco

from imsvd.datasets.drawn.masks import bounding_box, polygons, run_lengths, segmentation
from tests.oracles.masks import fill_polygon, fill_run_lengths

Mask = NDArray[np.bool_]

MASKS = arrays(np.bool_, st.tuples(st.integers(1, 7), st.integers(1, 7))).filter(
    lambda mask: bool(mask.any())
)


def picture(*rows: str) -> Mask:
    return np.array([[letter == "#" for letter in row] for row in rows])


def test_run_lengths_by_hand() -> None:
    assert run_lengths(picture(".#", "##")) == {"counts": [1, 3], "size": [2, 2]}
    assert run_lengths(picture("#.", ".."))["counts"] == [0, 1, 3]
    assert run_lengths(picture("..", ".."))["counts"] == [4]


def test_an_outline_by_hand() -> None:
    assert polygons(picture("....", ".##.", ".#..")) == [[1, 1, 3, 1, 3, 2, 2, 2, 2, 3, 1, 3]]


def test_parts_are_polygons_and_holes_are_run_lengths() -> None:
    parts = picture("#.#", "#.#")
    assert polygons(parts) == [[0, 0, 1, 0, 1, 2, 0, 2], [2, 0, 3, 0, 3, 2, 2, 2]]
    ring = picture("###", "#.#", "###")
    assert polygons(ring) is None
    assert segmentation(ring) == run_lengths(ring)
    assert segmentation(parts) == polygons(parts)


def test_pixels_that_touch_at_a_corner_are_two_parts() -> None:
    found = polygons(picture("#.", ".#"))
    assert found is not None
    assert len(found) == 2


@settings(max_examples=60, deadline=None)
@given(MASKS)
def test_every_spelling_gives_the_mask_again(mask: Mask) -> None:
    height, width = mask.shape
    assert (fill_run_lengths(run_lengths(mask)["counts"], height, width) == mask).all()
    outlines = polygons(mask)
    if outlines is not None:
        filled = [fill_polygon(outline, height, width) for outline in outlines]
        assert (np.sum(filled, axis=0) == mask).all()


@settings(max_examples=60, deadline=None)
@given(MASKS)
def test_pycocotools_reads_the_same_mask_area_and_box(mask: Mask) -> None:
    height, width = mask.shape
    written = segmentation(mask)
    encoded = coco.frPyObjects(written, height, width)
    if isinstance(written, list):
        encoded = coco.merge(encoded)
    assert (coco.decode(encoded).astype(bool) == mask).all()
    assert coco.area(encoded) == mask.sum()
    box = bounding_box(mask)
    corner_and_size = [box.left, box.top, box.right - box.left, box.bottom - box.top]
    assert coco.toBbox(encoded).tolist() == pytest.approx(corner_and_size)
