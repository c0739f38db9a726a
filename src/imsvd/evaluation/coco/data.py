"""Images with boxes and masks, in COCO's layout.

    annotations/instances_train2017.json    and train2017/
    annotations/instances_val2017.json      and val2017/

or the same with `train` and `val`, as `imsvd scenes` writes them. `file_name` is relative to the
split's folder. Masks are polygons, run lengths, or run lengths packed into a string. Opening the data
checks everything except the images' content and size, which are checked when an image is read.
https://cocodataset.org/#format-data
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.datasets.decoding import UnreadableImage, decode_image, read_file
from imsvd.datasets.folders import require_folder
from imsvd.errors import InputError

LAYOUTS = (("train2017", "val2017"), ("train", "val"))

Target = dict[str, Tensor]
Segmentation = list[list[float]] | dict[str, Any]

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


class CocoSplit:
    """Images of one split with their annotated objects.

    Attributes:
        name: name of the image folder.
        file: annotation file.
        images: image entries of the annotation file.
        categories: category names, ordered by identifier; the detector labels them from 1 on.
        object_counts: number of trainable objects per category.
        trainable: positions of the images that show at least one trainable object.
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
        # JSON text takes less memory than Python objects, and worker processes share it.
        self._objects = {image: json.dumps(entries) for image, entries in objects.items()}
        self.trainable = tuple(
            place for place, image in enumerate(self.images) if image["id"] in self._objects
        )

    def __len__(self) -> int:
        return len(self.images)

    def read(self, place: int) -> Tensor:
        """Return the image, uint8 (3, height, width)."""
        image = self.images[place]
        path = self.folder / image["file_name"]
        try:
            picture = decode_image(read_file(path, str(path)), str(path))
        except UnreadableImage as error:
            raise InputError(
                f"{error}; replace the file and run the same command again."
            ) from error
        if tuple(picture.shape[1:]) != (image["height"], image["width"]):
            raise InputError(
                f"{path} is {picture.shape[2]}×{picture.shape[1]} pixels, and {self.file} says "
                f"{image['width']}×{image['height']}; correct one of them."
            )
        return picture

    def target(self, place: int) -> Target:
        """Return the training target of an image.

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
        """Return the annotations in the form pycocotools expects, crowds included."""
        content, _ = _read_json(self.file)
        _learnable_objects(self.file, content)
        return content


class CocoData(NamedTuple):
    """Both splits; they have the same categories."""

    train: CocoSplit
    val: CocoSplit


def open_coco(root: str | Path) -> CocoData:
    """Open a folder in COCO's layout.

    Raises:
        InputError: naming the first deviation from COCO's format.
    """
    require_pycocotools()
    base = Path(root).expanduser()
    require_folder(base)
    names = _find_layout(base)
    for name in names:
        if not (base / "annotations" / f"instances_{name}.json").is_file():
            raise InputError(
                f"there is no {base / 'annotations' / f'instances_{name}.json'}; unpack COCO's archive "
                "of annotations, or write a dataset with `imsvd scenes`."
            )
    train, val = (CocoSplit(base, name) for name in names)
    if (train.category_ids, train.categories) != (val.category_ids, val.categories):
        raise InputError(f"{train.file} and {val.file} list different categories; use one list.")
    for split in (train, val):
        _check_files(split)
        if not split.trainable:
            raise InputError(f"{split.file} has no trainable object; add annotations.")
    for category in val.object_counts:
        if not train.object_counts[category]:
            raise InputError(
                f"{val.file} has objects of {category!r}, but {train.file} has none to learn from; "
                "add some, or remove the category from both."
            )
    return CocoData(train, val)


def _find_layout(base: Path) -> tuple[str, str]:
    for names in LAYOUTS:
        if all((base / name).is_dir() for name in names):
            return names
    raise InputError(
        f"{base} is not in COCO's layout: it needs annotations/ beside train2017/ and val2017/ (or "
        "train/ and val/); give the folder with COCO's unpacked archives."
    )


def _read_json(path: Path) -> tuple[dict[str, Any], str]:
    """Return the content of an annotation file and its hash."""
    try:
        text = path.read_bytes()
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}).") from error
    for key in ("images", "annotations", "categories"):
        entries = content.get(key) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"{path} has no list {key!r} of objects; use COCO's instances_*.json.")
    return content, hashlib.sha256(text).hexdigest()


def _learnable_objects(
    path: Path, content: Mapping[str, list[dict[str, Any]]]
) -> dict[int, list[dict[str, Any]]]:
    """Check all annotations; return the trainable ones by image, without crowds and empty boxes."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    found: dict[int, list[dict[str, Any]]] = {}
    for entry in content["annotations"]:
        size = sizes[entry["image_id"]]
        _check_annotation(path, entry, size)
        if not entry["iscrowd"] and _clipped(entry["bbox"], size) is not None:
            found.setdefault(entry["image_id"], []).append(entry)
    return found


def _check_identifiers(path: Path, content: Mapping[str, list[dict[str, Any]]]) -> None:
    """Require all fields, unique identifiers, and references to existing entries."""
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
                f"{path} has several {kind!r} with id {counts.most_common(1)[0][0]}; "
                "make the ids unique."
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
    """Check one annotation, and fill in fields that pycocotools needs and many files omit."""
    box = entry["bbox"]
    numbers = len(box) == 4 and all(isinstance(number, int | float) for number in box)
    if not numbers or not all(map(math.isfinite, box)) or min(box[2:]) < 0:
        raise InputError(
            f"{path}: annotation {entry['id']} has bbox {box}; write [left, top, width, height]."
        )
    problem = check_segmentation(entry["segmentation"], size)
    if problem:
        raise InputError(f"{path}: the segmentation of annotation {entry['id']} {problem}.")
    entry.setdefault("iscrowd", 0)
    if "area" not in entry:
        entry["area"] = float(decode_masks([entry["segmentation"]], size).sum())


def _clipped(bbox: list[float], size: tuple[int, int]) -> tuple[float, ...] | None:
    """Clip a box to an image (height, width); return left, top, right, bottom, or None if empty."""
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
                f"{split.file} lists {name}, which is missing from {split.folder}; add the image or "
                "remove its entry."
            )


def require_pycocotools() -> None:
    """Raise `InputError` unless pycocotools, an optional dependency, is installed."""
    if importlib.util.find_spec("pycocotools") is None:
        raise InputError("COCO's metrics need pycocotools; run `pip install 'imsvd[evaluation]'`.")


def check_segmentation(segmentation: Segmentation, size: tuple[int, int]) -> str | None:
    """Return what is wrong with a mask for an image (height, width), or None."""
    if isinstance(segmentation, dict):
        return _check_run_lengths(segmentation, size)
    if not segmentation:
        return "is empty; give polygons or run lengths"
    for polygon in segmentation:
        if not isinstance(polygon, list) or len(polygon) % 2:
            return "has a polygon that is not a list of coordinates x, y, x, y, …"
        if not all(isinstance(number, int | float) for number in polygon):
            return "has a polygon with a non-numeric coordinate"
    return None


def _check_run_lengths(segmentation: dict[str, Any], size: tuple[int, int]) -> str | None:
    if segmentation.get("size") != list(size):
        return f"has size {segmentation.get('size')}, but its image has {list(size)}"
    counts = segmentation.get("counts")
    if isinstance(counts, list):
        usable = all(isinstance(count, int) and count >= 0 for count in counts)
        filled = usable and sum(counts) == size[0] * size[1]
        return None if filled else "has counts that do not fill its size"
    return None if isinstance(counts, str) else "has no counts"


def decode_masks(segmentations: Sequence[Segmentation], size: tuple[int, int]) -> Tensor:
    """Return the masks as pixels, uint8 (n, height, width), for an image (height, width)."""
    from pycocotools import mask as coco_mask  # noqa: PLC0415 - an extra

    if not segmentations:
        return torch.zeros((0, *size), dtype=torch.uint8)
    decoded: NDArray[np.uint8] = coco_mask.decode(
        [_run_lengths(segmentation, size) for segmentation in segmentations]
    )
    return torch.from_numpy(decoded).permute(2, 0, 1).contiguous()


def encode_mask(mask: Tensor) -> dict[str, Any]:
    """Return a mask (height, width) as packed run lengths, COCO's format for results."""
    from pycocotools import mask as coco_mask  # noqa: PLC0415

    packed = coco_mask.encode(np.asfortranarray(mask.to(torch.uint8).cpu().numpy()))
    return {"size": list(mask.shape), "counts": packed["counts"].decode()}


def _run_lengths(segmentation: Segmentation, size: tuple[int, int]) -> Any:
    from pycocotools import mask as coco_mask  # noqa: PLC0415

    if isinstance(segmentation, list):
        # Fewer than three points enclose nothing, but pycocotools would read two as a box.
        shapes = [polygon for polygon in segmentation if len(polygon) >= 6]
        if not shapes:
            return coco_mask.encode(np.zeros(size, dtype=np.uint8, order="F"))
        return coco_mask.merge(coco_mask.frPyObjects(shapes, *size))
    if isinstance(segmentation["counts"], list):
        return coco_mask.frPyObjects(segmentation, *size)
    return segmentation
