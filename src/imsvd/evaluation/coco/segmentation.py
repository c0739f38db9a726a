"""COCO's three ways to write a mask: polygons, run lengths, and run lengths packed in a string."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.errors import InputError

Segmentation = list[list[float]] | dict[str, Any]


def require_pycocotools() -> None:
    """Raise `InputError` unless the extra is installed."""
    if importlib.util.find_spec("pycocotools") is None:
        raise InputError("COCO's measures need pycocotools; run pip install 'imsvd[detection]'.")


def check_segmentation(segmentation: Segmentation, size: tuple[int, int]) -> str | None:
    """What is wrong with a mask for an image (height, width), or None."""
    if isinstance(segmentation, dict):
        return _check_run_lengths(segmentation, size)
    if not segmentation:
        return "is empty; give polygons or run lengths"
    for polygon in segmentation:
        if not isinstance(polygon, list) or len(polygon) % 2:
            return "has a polygon that is not a list of points x, y, x, y, …"
        if not all(isinstance(number, int | float) for number in polygon):
            return "has a polygon with something that is not a number"
    return None


def _check_run_lengths(segmentation: dict[str, Any], size: tuple[int, int]) -> str | None:
    if segmentation.get("size") != list(size):
        return f"has size {segmentation.get('size')}, and its image {list(size)}"
    counts = segmentation.get("counts")
    if isinstance(counts, list):
        usable = all(isinstance(count, int) and count >= 0 for count in counts)
        filled = usable and sum(counts) == size[0] * size[1]
        return None if filled else "has counts that do not fill its size"
    return None if isinstance(counts, str) else "has no counts"


def decode_masks(segmentations: Sequence[Segmentation], size: tuple[int, int]) -> Tensor:
    """Masks as pixels, uint8 (n, height, width), of images (height, width)."""
    from pycocotools import mask as coco_mask  # noqa: PLC0415 - an extra

    if not segmentations:
        return torch.zeros((0, *size), dtype=torch.uint8)
    decoded: NDArray[np.uint8] = coco_mask.decode(
        [_run_lengths(segmentation, size) for segmentation in segmentations]
    )
    return torch.from_numpy(decoded).permute(2, 0, 1).contiguous()


def encode_mask(mask: Tensor) -> dict[str, Any]:
    """Packed run lengths of a mask (height, width), as COCO's results have them."""
    from pycocotools import mask as coco_mask  # noqa: PLC0415

    packed = coco_mask.encode(np.asfortranarray(mask.to(torch.uint8).cpu().numpy()))
    return {"size": list(mask.shape), "counts": packed["counts"].decode()}


def _run_lengths(segmentation: Segmentation, size: tuple[int, int]) -> Any:
    from pycocotools import mask as coco_mask  # noqa: PLC0415

    if isinstance(segmentation, list):
        # Fewer than three points enclose nothing, and pycocotools would take two for a box.
        shapes = [polygon for polygon in segmentation if len(polygon) >= 6]
        if not shapes:
            return coco_mask.encode(np.zeros(size, dtype=np.uint8, order="F"))
        return coco_mask.merge(coco_mask.frPyObjects(shapes, *size))
    if isinstance(segmentation["counts"], list):
        return coco_mask.frPyObjects(segmentation, *size)
    return segmentation
