"""Images with boxes and masks, in COCO's layout.

    annotations/instances_train2017.json    and train2017/
    annotations/instances_val2017.json      and val2017/

or the same with `train` and `val`, as `imsvd scenes` writes them. `file_name` is relative to the
folder of the split. https://cocodataset.org/#format-data. Everything is checked when it is opened;
only whether an image can be decoded, and has the size that is said, shows when it is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imsvd.datasets.decoding import UnreadableImage, decode_image, read_file
from imsvd.datasets.folders import require_folder
from imsvd.errors import InputError
from imsvd.evaluation.coco.segmentation import (
    check_segmentation,
    decode_masks,
    require_pycocotools,
)

LAYOUTS = (("train2017", "val2017"), ("train", "val"))

Target = dict[str, Tensor]


class CocoSplit:
    """The images of one split, with what is in them.

    Attributes:
        name: of the folder.
        file: the annotations.
        images: the entries of the JSON file.
        categories: names of the categories, in the order of their identifiers; the detector's
            label of the first is 1.
        object_counts: how many objects of each category there are to learn from.
        trainable: positions of the images that show at least one of them.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.folder = root / name
        self.file = root / "annotations" / f"instances_{name}.json"
        content, self.fingerprint = _read_json(self.file)
        _check_identifiers(self.file, content)
        ordered = sorted(content["categories"], key=lambda entry: entry["id"])
        self.category_ids = tuple(int(entry["id"]) for entry in ordered)
        self.categories = tuple(str(entry["name"]) for entry in ordered)
        self.images: list[dict[str, Any]] = content["images"]
        self._labels = {number: label for label, number in enumerate(self.category_ids, start=1)}
        objects = _learnable_objects(self.file, content)
        self.object_counts = Counter(
            self.categories[self._labels[entry["category_id"]] - 1]
            for entries in objects.values()
            for entry in entries
        )
        # As text: smaller than Python's objects, and worker processes share its pages.
        self._objects = {image: json.dumps(entries) for image, entries in objects.items()}
        self.trainable = tuple(
            place for place, image in enumerate(self.images) if image["id"] in self._objects
        )

    def __len__(self) -> int:
        return len(self.images)

    def read(self, place: int) -> Tensor:
        """The picture, uint8 (3, height, width)."""
        image = self.images[place]
        path = self.folder / image["file_name"]
        try:
            picture = decode_image(read_file(path, str(path)), str(path))
        except UnreadableImage as error:
            raise InputError(f"{error}; replace it and run the same command again.") from error
        if tuple(picture.shape[1:]) != (image["height"], image["width"]):
            raise InputError(
                f"{path} is {picture.shape[2]}×{picture.shape[1]} pixels, and {self.file} says "
                f"{image['width']}×{image['height']}; correct one of them."
            )
        return picture

    def target(self, place: int) -> Target:
        """What a detector learns from an image.

        Returns:
            `boxes` (n, 4) as left, top, right, bottom in pixels; `labels` (n,) from 1 on; `masks`
            (n, height, width) uint8.
        """
        image = self.images[place]
        size = (image["height"], image["width"])
        objects = json.loads(self._objects.get(image["id"], "[]"))
        masks = decode_masks([entry["segmentation"] for entry in objects], size)
        boxes = [_clipped(entry["bbox"], size) or (0.0,) * 4 for entry in objects]
        labels = [self._labels[entry["category_id"]] for entry in objects]
        visible = masks.flatten(1).any(dim=1).bool()
        return {
            "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)[visible],
            "labels": torch.tensor(labels, dtype=torch.int64)[visible],
            "masks": masks[visible],
        }

    def ground_truth(self) -> dict[str, Any]:
        """The JSON file as pycocotools takes it, crowds and all."""
        content, _ = _read_json(self.file)
        _learnable_objects(self.file, content)
        return content


class CocoData(NamedTuple):
    """Both splits, with the same categories."""

    train: CocoSplit
    val: CocoSplit


def open_coco(root: str | Path) -> CocoData:
    """Open a folder in COCO's layout.

    Raises:
        InputError: one sentence about the first thing that is not as COCO has it.
    """
    require_pycocotools()
    base = Path(root).expanduser()
    require_folder(base)
    names = _find_layout(base)
    for name in names:
        if not (base / "annotations" / f"instances_{name}.json").is_file():
            raise InputError(
                f"there is no {base / 'annotations' / f'instances_{name}.json'}; COCO's archive of "
                "annotations has it, and `imsvd scenes` writes one."
            )
    train, val = (CocoSplit(base, name) for name in names)
    if (train.category_ids, train.categories) != (val.category_ids, val.categories):
        raise InputError(f"{train.file} and {val.file} list different categories; use one list.")
    for split in (train, val):
        _check_files(split)
        if not split.trainable:
            raise InputError(f"{split.file} marks no object; nothing can be learned or measured.")
    for category in val.object_counts:
        if not train.object_counts[category]:
            raise InputError(
                f"{val.file} has objects of {category!r} and {train.file} has none to learn from; "
                "add some, or take the category out of both."
            )
    return CocoData(train, val)


def _find_layout(base: Path) -> tuple[str, str]:
    for names in LAYOUTS:
        if all((base / name).is_dir() for name in names):
            return names
    raise InputError(
        f"{base} is not in COCO's layout: it needs annotations/ beside train2017/ and val2017/ (or "
        "train/ and val/); give the folder that COCO's archives were unpacked in."
    )


def _read_json(path: Path) -> tuple[dict[str, Any], str]:
    """The content of a file of annotations, and its hash."""
    try:
        text = path.read_bytes()
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}).") from error
    for key in ("images", "annotations", "categories"):
        entries = content.get(key) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(
                f"{path} has no list {key!r} of objects; give COCO's instances_*.json, not another "
                "of its files."
            )
    return content, hashlib.sha256(text).hexdigest()


def _learnable_objects(
    path: Path, content: Mapping[str, list[dict[str, Any]]]
) -> dict[int, list[dict[str, Any]]]:
    """Checked objects by image; crowds and boxes without area are for the evaluation alone."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    found: dict[int, list[dict[str, Any]]] = {}
    for entry in content["annotations"]:
        size = sizes[entry["image_id"]]
        _check_annotation(path, entry, size)
        if not entry["iscrowd"] and _clipped(entry["bbox"], size) is not None:
            found.setdefault(entry["image_id"], []).append(entry)
    return found


_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "images": {"id": int, "file_name": str, "height": int, "width": int},
    "categories": {"id": int, "name": str},
    "annotations": {
        "id": int,
        "image_id": int,
        "category_id": int,
        "bbox": list,
        "segmentation": (list, dict),
    },
}


def _check_identifiers(path: Path, content: Mapping[str, list[dict[str, Any]]]) -> None:
    """Require every field, every identifier once, and no reference to what is not there."""
    known: dict[str, set[int]] = {}
    for kind, fields in _FIELDS.items():
        for entry in content[kind]:
            for field, types in fields.items():
                if not isinstance(entry.get(field), types):
                    raise InputError(
                        f"{path}: the entry {entry.get('id')!r} of {kind!r} has no usable "
                        f"{field!r}; see cocodataset.org/#format-data."
                    )
        counts = Counter(entry["id"] for entry in content[kind])
        if counts and counts.most_common(1)[0][1] > 1:
            raise InputError(
                f"{path} has more than one of {kind!r} with id {counts.most_common(1)[0][0]}; "
                "number them differently."
            )
        known[kind] = set(counts)
    for entry in content["annotations"]:
        for field, kind in (("image_id", "images"), ("category_id", "categories")):
            if entry[field] not in known[kind]:
                raise InputError(
                    f"{path}: annotation {entry['id']} has {field} {entry[field]}, which is not in "
                    f"{kind!r}; add it there or delete the annotation."
                )


def _check_annotation(path: Path, entry: dict[str, Any], size: tuple[int, int]) -> None:
    """Refuse what nobody could use, and fill in what COCO's tools need and many files leave out."""
    box = entry["bbox"]
    numbers = len(box) == 4 and all(isinstance(number, int | float) for number in box)
    if not numbers or not all(map(math.isfinite, box)) or min(box[2:]) < 0:
        raise InputError(
            f"{path}: annotation {entry['id']} has bbox {box}; write [left, top, width, height]."
        )
    complaint = check_segmentation(entry["segmentation"], size)
    if complaint:
        raise InputError(f"{path}: the segmentation of annotation {entry['id']} {complaint}.")
    entry.setdefault("iscrowd", 0)
    if "area" not in entry:
        entry["area"] = float(decode_masks([entry["segmentation"]], size).sum())


def _clipped(bbox: list[float], size: tuple[int, int]) -> tuple[float, ...] | None:
    """(left, top, right, bottom) inside an image (height, width); None if nothing is left."""
    height, width = size
    left, top = max(0.0, bbox[0]), max(0.0, bbox[1])
    right, bottom = min(float(width), bbox[0] + bbox[2]), min(float(height), bbox[1] + bbox[3])
    return (left, top, right, bottom) if right > left and bottom > top else None


def _check_files(split: CocoSplit) -> None:
    present = {entry.name for entry in os.scandir(split.folder)}
    for image in split.images:
        name = image["file_name"]
        if name not in present and not (split.folder / name).is_file():
            raise InputError(
                f"{split.file} lists {name}, but {split.folder} does not hold it; add the image or "
                "take it off the list."
            )
