"""COCO's numbers on cases that a person can work out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from imsvd.errors import InputError
from imsvd.evaluation.coco.data import encode_mask
from imsvd.evaluation.coco.protocol import average_precision, detect
from tests import gloo
from tests.evaluation.coco.tiny import HEIGHT, WIDTH, annotations

# COCO reads precision at recall 0, 0.01, …, 1; half of the objects reach the first 51 of those.
HALF = 100 * 51 / 101


def found(image: int, category: int, box: tuple[int, ...], score: float = 0.9) -> dict[str, Any]:
    left, top, width, height = box
    mask = torch.zeros(HEIGHT, WIDTH)
    mask[top : top + height, left : left + width] = 1
    return {
        "image_id": image,
        "category_id": category,
        "score": score,
        "bbox": list(box),
        "segmentation": encode_mask(mask),
    }


RED = found(1, 3, (4, 4, 16, 16))
BLUE = found(1, 7, (28, 10, 14, 18))
OTHER_BLUE = found(2, 7, (20, 6, 20, 20))


def values(detections: list[dict[str, Any]], kind: str = "box") -> list[float]:
    metrics = average_precision(annotations(), detections)
    return [metrics[f"coco_{kind}_{number}"] for number in ("ap", "ap50", "ap75")]


@pytest.mark.parametrize("kind", ["box", "mask"])
def test_perfect_half_and_none(kind: str) -> None:
    assert values([RED, BLUE, OTHER_BLUE], kind) == pytest.approx([100] * 3)
    # All of the red and half of the blue, and the mean of both categories.
    assert values([RED, BLUE], kind) == pytest.approx([(100 + HALF) / 2] * 3)
    assert values([], kind) == [0, 0, 0]
    assert values([found(3, 3, (4, 4, 16, 16))], kind) == [0, 0, 0]


def test_a_box_that_overlaps_by_0_64_counts_at_three_of_ten_thresholds() -> None:
    # Intersection 16·16 over union 20·20: at 0.5, 0.55 and 0.6.
    blue = found(2, 7, (22, 8, 16, 16))
    measured = values([RED, BLUE, blue])
    assert measured[1] == pytest.approx(100)
    assert measured[2] == pytest.approx((100 + HALF) / 2)
    assert measured[0] == pytest.approx((100 + 0.3 * 100 + 0.7 * HALF) / 2)


def test_a_mask_is_judged_apart_from_its_box() -> None:
    # The box is right, but only half of its pixels are marked: an overlap of 0.5.
    half = OTHER_BLUE | {"segmentation": found(2, 7, (20, 6, 20, 10))["segmentation"]}
    assert values([RED, BLUE, half]) == pytest.approx([100] * 3)
    masks = values([RED, BLUE, half], "mask")
    assert masks[1] == pytest.approx(100)
    assert masks[2] == pytest.approx((100 + HALF) / 2)


def test_a_mistake_costs_only_what_ranks_below_it() -> None:
    mistake = (3, 3, (4, 4, 16, 16))
    assert values([RED, found(*mistake, score=0.1), BLUE, OTHER_BLUE])[0] == pytest.approx(100)
    # Before the one red object: precision one half wherever it is read.
    worse = [RED, found(*mistake, score=0.99), BLUE, OTHER_BLUE]
    assert values(worse)[0] == pytest.approx((50 + 100) / 2)


def test_a_detection_in_a_crowd_is_no_mistake() -> None:
    truth = annotations()
    detections = [found(3, 3, (4, 4, 16, 16), 0.99), RED, BLUE, OTHER_BLUE]
    assert average_precision(truth, detections)["coco_box_ap"] == pytest.approx(75)
    crowd = dict(truth["annotations"][0], id=99, image_id=3, iscrowd=1)
    mask = encode_mask(torch.ones(HEIGHT, WIDTH))
    crowd |= {"bbox": [0, 0, WIDTH, HEIGHT], "segmentation": mask, "area": WIDTH * HEIGHT}
    truth["annotations"].append(crowd)
    metrics = average_precision(truth, detections)
    assert metrics["coco_box_ap"] == pytest.approx(100)
    assert metrics["coco_mask_ap"] == pytest.approx(100)


class HalfReadable:
    """Four images, of which the second half cannot be read."""

    def __len__(self) -> int:
        return 4

    def read(self, place: int) -> Tensor:
        if place >= 2:
            raise InputError(f"{place}.jpg is truncated")
        return torch.zeros(3, 8, 8, dtype=torch.uint8)


class Blind(nn.Module):
    """Finds nothing."""

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        nothing = {"boxes": torch.zeros(0, 4), "masks": torch.zeros(0, 1, 8, 8)}
        return [nothing | {"labels": torch.zeros(0), "scores": torch.zeros(0)} for _ in images]


def hear() -> str:
    try:
        detect(Blind(), HalfReadable(), torch.device("cpu"), lambda _done: None)  # type: ignore[arg-type]
    except InputError as error:
        return str(error)
    return ""


def test_an_unreadable_image_of_one_rank_leaves_none_waiting() -> None:
    assert gloo.run(2, hear) == ["2.jpg is truncated"] * 2
