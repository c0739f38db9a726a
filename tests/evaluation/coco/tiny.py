"""The smallest data in COCO's layout, encoder and settings that still have everything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from imsvd.encoder import Encoder, EncoderDescription
from imsvd.evaluation.coco import DetectionSettings, resolve_settings
from imsvd.networks import BackboneSettings

HEIGHT, WIDTH = 32, 48
CATEGORIES = ({"id": 3, "name": "red"}, {"id": 7, "name": "blue"})
COLORS = {3: (220, 30, 30), 7: (30, 30, 220)}

# Category and box (left, top, width, height) of the objects of every image.
OBJECTS = (
    ((3, (4, 4, 16, 16)), (7, (28, 10, 14, 18))),
    ((7, (20, 6, 20, 20)),),
    (),
)

Change = Callable[[dict[str, Any]], object]


def rectangle(box: tuple[int, int, int, int]) -> list[list[float]]:
    left, top, width, height = box
    right, bottom = left + width, top + height
    return [[left, top, right, top, right, bottom, left, bottom]]


def annotations() -> dict[str, Any]:
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [dict(category) for category in CATEGORIES],
    }
    for number, objects in enumerate(OBJECTS, start=1):
        name = f"{number}.png"
        content["images"].append(
            {"id": number, "file_name": name, "height": HEIGHT, "width": WIDTH}
        )
        for category, box in objects:
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": number,
                    "category_id": category,
                    "bbox": list(box),
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                    "segmentation": rectangle(box),
                }
            )
    return content


def write_coco(
    root: Path, change: Change = lambda _: None, names: tuple[str, str] = ("train", "val")
) -> Path:
    """Write both splits, alike, but for what `change` does to the training split's JSON."""
    for name in names:
        folder = root / name
        folder.mkdir(parents=True)
        for number, objects in enumerate(OBJECTS, start=1):
            pixels = np.full((HEIGHT, WIDTH, 3), 128, dtype=np.uint8)
            for category, (left, top, width, height) in objects:
                pixels[top : top + height, left : left + width] = COLORS[category]
            Image.fromarray(pixels).save(folder / f"{number}.png")
        content = annotations()
        if name == names[0]:
            change(content)
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))
    return root


def encoder(seed: int = 0, **options: Any) -> Encoder:
    torch.manual_seed(seed)
    sizes = {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16], "stem_type": "deep"}
    backbone = BackboneSettings(
        name="resnet18", stem="stride_1", options=sizes | {"stem_width": 8} | options
    )
    description = EncoderDescription(
        method="imsvd", backbone=backbone, size=32, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)
    )
    return Encoder(description)


def settings(*assignments: str, iterations: int = 4) -> DetectionSettings:
    small = (
        "batch_size=2",
        "sizes=[28, 32]",
        "anchor_sizes=[12, 20]",
        "candidates=[50, 50]",
        "proposals=[20, 20]",
        "regions_per_image=8",
        "mask_channels=8",
        "precise_batches=2",
        "compute.accelerator=cpu",
    )
    return resolve_settings("small", iterations, [*small, *assignments])
