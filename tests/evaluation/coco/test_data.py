"""COCO's files: what is learned from, and one sentence for everything that is wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.datasets.drawn.masks import run_lengths
from imsvd.errors import InputError
from imsvd.evaluation.coco import open_coco
from imsvd.evaluation.coco.data import Segmentation, check_segmentation, decode_masks, encode_mask
from tests.evaluation.coco.tiny import Change, rectangle, write_coco


def test_targets_are_boxes_labels_and_masks(tmp_path: Path) -> None:
    data = open_coco(write_coco(tmp_path))
    assert data.train.categories == ("red", "blue")
    assert (len(data.train), data.train.trainable) == (3, (0, 1))
    target = data.train.target(0)
    assert target["boxes"].tolist() == [[4, 4, 20, 20], [28, 10, 42, 28]]
    assert target["labels"].tolist() == [1, 2]
    expected = torch.zeros(32, 48, dtype=torch.uint8)
    expected[4:20, 4:20] = 1
    assert torch.equal(target["masks"][0], expected)
    assert data.train.read(0)[:, 5, 5].tolist() == [220, 30, 30]


def test_an_image_without_objects_has_an_empty_target(tmp_path: Path) -> None:
    target = open_coco(write_coco(tmp_path)).train.target(2)
    shapes = [tuple(target[name].shape) for name in ("boxes", "labels", "masks")]
    assert shapes == [(0, 4), (0,), (0, 32, 48)]


def test_the_official_names_are_known(tmp_path: Path) -> None:
    assert open_coco(write_coco(tmp_path, names=("train2017", "val2017"))).val.name == "val2017"


def first(content: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = content["annotations"][0]
    return entry


@pytest.mark.parametrize(
    "change",
    [
        lambda content: first(content).update(iscrowd=1),
        lambda content: first(content).update(bbox=[4, 4, 0, 16]),
        lambda content: first(content).update(bbox=[60, 4, 16, 16]),
    ],
    ids=["crowd", "no width", "outside"],
)
def test_what_cannot_be_learned_is_left_to_the_evaluation(change: Change, tmp_path: Path) -> None:
    def changed(content: dict[str, Any]) -> None:
        content["annotations"].append(dict(first(content), id=99))
        change(content)

    train = open_coco(write_coco(tmp_path, changed)).train
    assert sorted(train.target(0)["labels"].tolist()) == [1, 2]
    assert len(train.ground_truth()["annotations"]) == 4


def test_an_object_whose_mask_has_no_pixel_is_left_out(tmp_path: Path) -> None:
    def changed(content: dict[str, Any]) -> None:
        content["annotations"].append(
            dict(first(content), id=99, segmentation=[[5, 5, 5, 5, 5, 5]])
        )

    assert open_coco(write_coco(tmp_path, changed)).train.target(0)["labels"].tolist() == [1, 2]


def test_area_and_crowd_are_filled_in_where_they_are_missing(tmp_path: Path) -> None:
    def changed(content: dict[str, Any]) -> None:
        del first(content)["area"], first(content)["iscrowd"]

    truth = open_coco(write_coco(tmp_path, changed)).train.ground_truth()
    assert (first(truth)["area"], first(truth)["iscrowd"]) == (256, 0)


BAD: dict[str, tuple[Change, str]] = {
    "category": (lambda c: first(c).update(category_id=9), "category_id 9, which is not in"),
    "image": (lambda c: first(c).update(image_id=9), "image_id 9, which is not in 'images'"),
    "twice": (lambda c: first(c).update(id=2), "several 'annotations' with id 2"),
    "box": (lambda c: first(c).update(bbox=[1, 2, 3]), "bbox [1, 2, 3]"),
    "negative": (lambda c: first(c).update(bbox=[1, 2, -3, 4]), "bbox [1, 2, -3, 4]"),
    "no box": (lambda c: first(c).pop("bbox"), "has no usable 'bbox'"),
    "mask": (lambda c: first(c).update(segmentation=[[1, 2, 3]]), "segmentation of annotation 1"),
    "absent": (lambda c: c["images"][1].update(file_name="no.png"), "lists no.png"),
    "empty class": (lambda c: c["annotations"].pop(0), "objects of 'red'"),
    "nothing": (lambda c: c["annotations"].clear(), "has no trainable object"),
    "list": (lambda c: c.pop("categories"), "no list 'categories'"),
    "categories": (lambda c: c["categories"][0].update(name="green"), "different categories"),
}


@pytest.mark.parametrize(("change", "phrase"), BAD.values(), ids=BAD)
def test_bad_annotations_are_one_sentence(change: Change, phrase: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_coco(write_coco(tmp_path, change))
    assert phrase in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_layouts_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        open_coco(tmp_path / "none")
    with pytest.raises(InputError, match="not in COCO's layout"):
        open_coco(tmp_path)
    root = write_coco(tmp_path / "data")
    file = root / "annotations" / "instances_val.json"
    file.write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        open_coco(root)
    file.unlink()
    with pytest.raises(InputError, match=r"there is no .*instances_val\.json"):
        open_coco(root)


def test_an_image_that_is_not_as_described_is_named_when_it_is_read(tmp_path: Path) -> None:
    root = write_coco(tmp_path, lambda c: c["images"][0].update(width=50))
    with pytest.raises(InputError, match=r"1\.png is 48×32 pixels, and .* says 50×32"):
        open_coco(root).train.read(0)
    (root / "train" / "2.png").write_bytes(b"text")
    with pytest.raises(InputError, match=r"2\.png"):
        open_coco(root).train.read(1)


def test_another_annotation_is_another_fingerprint(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    before = open_coco(root).train.fingerprint
    file = root / "annotations" / "instances_train.json"
    content = json.loads(file.read_text())
    first(content)["bbox"][0] += 1
    file.write_text(json.dumps(content))
    assert open_coco(root).train.fingerprint != before


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
        ([[1, 2, 3]], "not a list of coordinates"),
        ([[1, 2, 3, 4, 5, "6"]], "non-numeric coordinate"),
        ({"size": [6, 8], "counts": [5]}, "do not fill"),
        ({"size": [6, 8], "counts": [50, -2]}, "do not fill"),
        ({"size": [8, 6], "counts": "abc"}, "has size [8, 6]"),
        ({"size": [6, 8]}, "no counts"),
    ],
)
def test_what_is_no_mask_is_said(segmentation: Segmentation, complaint: str) -> None:
    assert complaint in (check_segmentation(segmentation, (6, 8)) or "")
