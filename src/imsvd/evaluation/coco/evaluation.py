"""COCO's average precision of boxes and masks, measured by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch

from imsvd.distributed import gather_lists, own_slice, together
from imsvd.evaluation.coco.data import CocoSplit
from imsvd.evaluation.coco.model import MaskRCNN
from imsvd.evaluation.coco.segmentation import encode_mask

# What pycocotools calls them, and the first three of its numbers.
_KINDS = {"box": "bbox", "mask": "segm"}
_NUMBERS = ("ap", "ap50", "ap75")


def detect(
    model: MaskRCNN,
    split: CocoSplit,
    device: torch.device,
    progress: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Everything that `model` finds in a split, in the form of COCO's results, from all ranks.

    Each rank looks at its share of the images; `progress` hears how many it has done.
    """
    model.eval()
    places = range(len(split))[own_slice(len(split))]

    def own() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for done, place in enumerate(places, start=1):
            image = split.read(place).to(device).float() / 255
            (detections,) = model([image])
            found += _as_results(split, place, detections)
            progress(done)
        return found

    with torch.no_grad():
        return gather_lists(together(own))


def _as_results(
    split: CocoSplit, place: int, detections: dict[str, torch.Tensor]
) -> list[dict[str, Any]]:
    boxes = detections["boxes"].cpu()
    # COCO's boxes are left, top, width, height.
    boxes = torch.cat((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), dim=1)
    masks = detections["masks"][:, 0] > 0.5
    return [
        {
            "image_id": split.images[place]["id"],
            "category_id": split.category_ids[label - 1],
            "score": score,
            "bbox": box,
            "segmentation": encode_mask(mask),
        }
        for label, score, box, mask in zip(
            detections["labels"].tolist(),
            detections["scores"].tolist(),
            boxes.tolist(),
            masks,
            strict=True,
        )
    ]


def average_precision(
    ground_truth: dict[str, Any], detections: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """COCO's AP, AP50 and AP75 of boxes and masks, in percent.

    Args:
        ground_truth: the content of an annotation file.
        detections: COCO's results with `bbox` and `segmentation`.
    """
    metrics = {f"coco_{kind}_{number}": 0.0 for kind in _KINDS for number in _NUMBERS}
    if not detections:
        return metrics
    from pycocotools.coco import COCO  # noqa: PLC0415 - an extra
    from pycocotools.cocoeval import COCOeval  # noqa: PLC0415

    # It prints whatever it does.
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = ground_truth
        truth.createIndex()
        for kind, name in _KINDS.items():
            # With a box beside it, pycocotools takes the box's area for the mask's.
            dropped = "segmentation" if kind == "box" else "bbox"
            own = [{key: item[key] for key in item if key != dropped} for item in detections]
            measured = COCOeval(truth, truth.loadRes(own), name)
            measured.evaluate()
            measured.accumulate()
            measured.summarize()
            for number, value in zip(_NUMBERS, measured.stats, strict=False):
                metrics[f"coco_{kind}_{number}"] = 100 * max(0.0, float(value))
    return metrics
