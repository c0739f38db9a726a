"""The COCO protocol: train a detector, run it on the validation images, measure average precision."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from imsvd.checkpoints import seed_random_state
from imsvd.distributed import gather_lists, own_slice, together
from imsvd.encoder import Encoder
from imsvd.engine.hardware import launch
from imsvd.evaluation.coco.data import CocoData, CocoSplit, encode_mask
from imsvd.evaluation.coco.model import MaskRCNN, build_detector
from imsvd.evaluation.coco.settings import DetectionSettings
from imsvd.evaluation.coco.training import DetectorTraining, TrainingStream
from imsvd.files import write_atomically
from imsvd.progress import progress_bar

# pycocotools' names of the two kinds of detection, and the first three numbers it reports.
_KINDS = {"box": "bbox", "mask": "segm"}
_NUMBERS = ("ap", "ap50", "ap75")


class CocoOutcome(NamedTuple):
    """COCO's metrics in percent, and details for results.jsonl."""

    metrics: dict[str, float]
    details: dict[str, Any]


def run_coco(
    encoder: Encoder, data: CocoData, folder: Path, settings: DetectionSettings, console: Console
) -> CocoOutcome:
    """Train Mask R-CNN C4 on the training split and measure it on the validation split.

    The detector takes over the encoder's backbone. Checkpoints go to a sub-folder of `folder` for each
    combination of encoder, data and settings; the same call resumes an interrupted training.

    Raises:
        Interrupted: on Ctrl-C or SIGTERM, after saving.
    """
    state = folder / _identity(encoder, data, settings)
    seed_random_state(settings.seed)
    model = build_detector(encoder, len(data.train.categories), settings)
    fabric = launch(settings.compute)
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    else:
        description = json.dumps(settings.model_dump(mode="json"), indent=2) + "\n"
        write_atomically(state / "settings.json", description.encode())
    stream = TrainingStream(data.train, settings.seed)
    training = DetectorTraining(model, stream, settings, state, fabric)
    training.fit(console)
    training.precise_norms()
    with progress_bar(console) as bar:
        task = bar.add_task("detections", total=len(data.val) // fabric.world_size)
        found = detect(
            training.detector,
            data.val,
            fabric.device,
            lambda done: bar.update(task, completed=done),
        )
    first = fabric.is_global_zero
    own = together(lambda: [average_precision(data.val.ground_truth(), found)] if first else [])
    (metrics,) = gather_lists(own)
    details = {
        "train_images": len(data.train.trainable),
        "test_images": len(data.val),
        "categories": len(data.val.categories),
        "detections": len(found),
        "settings": settings.model_dump(mode="json", exclude={"compute"}),
    }
    return CocoOutcome(metrics, details)


def _identity(encoder: Encoder, data: CocoData, settings: DetectionSettings) -> str:
    """Return a hash of everything that determines the result; hardware settings do not."""
    digest = hashlib.sha256()
    digest.update(settings.model_dump_json(exclude={"compute"}).encode())
    digest.update(f"{data.train.fingerprint} {data.val.fingerprint}".encode())
    for name, tensor in encoder.backbone.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def detect(
    model: MaskRCNN,
    split: CocoSplit,
    device: torch.device,
    progress: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Return all ranks' detections in a split, in COCO's results format.

    Each rank processes its share of the images and passes the number done to `progress`.
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
    """Return COCO's AP, AP50 and AP75 of boxes and masks, in percent.

    `ground_truth` is the content of an annotation file; `detections` are in COCO's results format.
    """
    metrics = {f"coco_{kind}_{number}": 0.0 for kind in _KINDS for number in _NUMBERS}
    if not detections:
        return metrics
    from pycocotools.coco import COCO  # noqa: PLC0415 - an extra
    from pycocotools.cocoeval import COCOeval  # noqa: PLC0415

    # pycocotools prints its progress.
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = ground_truth
        truth.createIndex()
        for kind, name in _KINDS.items():
            # Given both, pycocotools would use the box's area for the mask.
            dropped = "segmentation" if kind == "box" else "bbox"
            own = [{key: item[key] for key in item if key != dropped} for item in detections]
            measured = COCOeval(truth, truth.loadRes(own), name)
            measured.evaluate()
            measured.accumulate()
            measured.summarize()
            for number, value in zip(_NUMBERS, measured.stats, strict=False):
                metrics[f"coco_{kind}_{number}"] = 100 * max(0.0, float(value))
    return metrics
