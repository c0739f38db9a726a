"""The three ways to write a mask say the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.datasets.drawn.masks import run_lengths
from imsvd.evaluation.coco.segmentation import (
    Segmentation,
    check_segmentation,
    decode_masks,
    encode_mask,
)
from tests.evaluation.coco.tiny import rectangle


def test_polygon_run_lengths_and_packed_run_lengths_agree() -> None:
    expected = torch.zeros(6, 8, dtype=torch.uint8)
    expected[1:4, 2:7] = 1
    # Column by column: two empty columns and a pixel, then three on and three off, five times.
    counts = [2 * 6 + 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2 + 6]
    masks = decode_masks(
        [
            rectangle((2, 1, 5, 3)),
            {"size": [6, 8], "counts": counts},
            encode_mask(expected),
        ],
        (6, 8),
    )
    assert masks.dtype == torch.uint8
    assert all(torch.equal(mask, expected) for mask in masks)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_any_mask_survives_both_run_lengths(height: int, width: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < 0.5
    expected = torch.from_numpy(mask).to(torch.uint8)
    spelled: list[Segmentation] = [run_lengths(mask), encode_mask(expected)]
    for segmentation in spelled:
        assert check_segmentation(segmentation, (height, width)) is None
        assert torch.equal(decode_masks([segmentation], (height, width))[0], expected)


def test_parts_of_a_mask_are_joined_and_two_points_enclose_nothing() -> None:
    parts = rectangle((0, 0, 2, 2)) + rectangle((5, 3, 2, 2)) + [[0, 0, 8, 6]]
    mask = decode_masks([parts], (6, 8))[0]
    assert mask.sum() == 8
    assert decode_masks([[[0.0, 0.0, 8.0, 6.0]]], (6, 8)).sum() == 0
    assert decode_masks([], (6, 8)).shape == (0, 6, 8)


@pytest.mark.parametrize(
    ("segmentation", "complaint"),
    [
        ([], "is empty"),
        ([[1, 2, 3]], "not a list of points"),
        ([[1, 2, 3, 4, 5, "6"]], "not a number"),
        ({"size": [6, 8], "counts": [5]}, "do not fill"),
        ({"size": [6, 8], "counts": [50, -2]}, "do not fill"),
        ({"size": [8, 6], "counts": "abc"}, "has size [8, 6]"),
        ({"size": [6, 8]}, "no counts"),
    ],
)
def test_what_is_no_mask_is_said(segmentation: Segmentation, complaint: str) -> None:
    assert complaint in (check_segmentation(segmentation, (6, 8)) or "")
