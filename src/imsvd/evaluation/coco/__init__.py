"""Detection and instance segmentation on COCO, with Mask R-CNN C4 around an encoder."""

from imsvd.evaluation.coco.data import CocoData, open_coco
from imsvd.evaluation.coco.protocol import run_coco
from imsvd.evaluation.coco.settings import DetectionSettings, full, resolve_settings, small

__all__ = [
    "CocoData",
    "DetectionSettings",
    "full",
    "open_coco",
    "resolve_settings",
    "run_coco",
    "small",
]
