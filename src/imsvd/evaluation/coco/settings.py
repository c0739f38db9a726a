"""The settings of Mask R-CNN C4, at the paper's scale and at one that a CPU can carry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field, field_validator, model_validator

from imsvd.config import ComputeSettings
from imsvd.errors import InputError
from imsvd.settings import Settings, override_group


class DetectionSettings(Settings):
    """Everything that defines the training of a detector; the defaults are the 1× schedule.

    They are those of Detectron2's Mask R-CNN C4 as changed by MoCo (arXiv:1911.05722, appendix)
    for pretrained encoders: nothing frozen, synchronized BatchNorm, one more norm after conv5.
    """

    seed: int = Field(0, ge=0)
    weights: Literal["pretrained", "random"] = Field(
        "pretrained", description="random: the same network without its training, as baseline"
    )
    iterations: int = Field(90_000, ge=1)
    batch_size: int = Field(16, ge=1, description="images per step over all processes together")
    lr: float = Field(0.1, gt=0, description="the paper's; Detectron2's default is 0.02")
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0, description="of all weights but those of norms")
    warmup_share: float = Field(
        1 / 90, ge=0, lt=1, description="part of the iterations in which the rate rises from 0"
    )
    decay_at: tuple[float, ...] = Field(
        (2 / 3, 8 / 9), description="parts of the iterations after which the rate is divided by 10"
    )
    sizes: tuple[int, ...] = Field(
        (640, 672, 704, 736, 768, 800),
        min_length=1,
        description="shorter sides to draw from in training; tested with the last",
    )
    max_size: int = Field(1333, ge=1, description="most pixels of the longer side")
    anchor_sizes: tuple[int, ...] = Field(
        (32, 64, 128, 256, 512), min_length=1, description="sides of the anchors in pixels"
    )
    anchor_ratios: tuple[float, ...] = Field(
        (0.5, 1.0, 2.0), min_length=1, description="height / width of the anchors"
    )
    candidates: tuple[int, int] = Field(
        (12_000, 6_000), description="best anchors kept before suppression, training and testing"
    )
    proposals: tuple[int, int] = Field(
        (2_000, 1_000), description="proposals kept after it, training and testing"
    )
    anchors_per_image: int = Field(256, ge=2, description="anchors in the loss")
    regions_per_image: int = Field(512, ge=2, description="proposals in the loss")
    sampling_ratio: int = Field(
        0, ge=0, description="points a side in every bin of RoIAlign; 0 = by the region's size"
    )
    mask_channels: int = Field(256, ge=8, description="width of the mask's deconvolution")
    norm: Literal["trained", "frozen"] = Field(
        "trained",
        description="BatchNorm: trained, with one more after conv5; or frozen as pretrained",
    )
    precise_batches: int = Field(
        200, ge=0, description="batches that BatchNorm's statistics are averaged over for testing"
    )
    compute: ComputeSettings = ComputeSettings(precision="32-true")

    @field_validator("decay_at")
    @classmethod
    def _check_decay(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < share <= 1 for share in value):
            raise ValueError(
                f"{list(value)} must be parts of the iterations, above 0 and at most 1"
            )
        return value

    @field_validator("sizes", "anchor_sizes", "candidates", "proposals", "anchor_ratios")
    @classmethod
    def _check_positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(number <= 0 for number in value):
            raise ValueError(f"{list(value)} has a number that is not above 0; give positive ones")
        return value

    @model_validator(mode="after")
    def _check_sizes(self) -> DetectionSettings:
        if max(self.sizes) > self.max_size:
            raise ValueError(
                f"sizes={list(self.sizes)} goes beyond max_size={self.max_size}; raise the second"
            )
        return self

    def learning_rate(self, step: int) -> float:
        """The rate of `step`, counted from 0: linear warm-up, then divided by 10 now and then."""
        warmup = round(self.warmup_share * self.iterations)
        decays = sum(step >= round(share * self.iterations) for share in self.decay_at)
        rise = (step + 1) / warmup if step < warmup else 1.0
        return float(self.lr * rise * 0.1**decays)


def full() -> DetectionSettings:
    """The paper's: 90,000 iterations of 16 images, for several GPUs."""
    return DetectionSettings()


def small() -> DetectionSettings:
    """For scenes of some 128 pixels on two CPU cores: a few minutes."""
    return DetectionSettings(
        iterations=400,
        batch_size=4,
        lr=0.05,
        warmup_share=0.1,
        sizes=(112, 128),
        max_size=256,
        anchor_sizes=(16, 32, 64),
        candidates=(300, 300),
        proposals=(100, 50),
        anchors_per_image=64,
        regions_per_image=32,
        sampling_ratio=1,
        mask_channels=64,
        precise_batches=25,
        compute=ComputeSettings(precision="32-true", workers=0),
    )


SCALES = {"full": full, "small": small}


def automatic_scale() -> str:
    """Full where there is a GPU."""
    return "full" if torch.cuda.is_available() else "small"


def resolve_settings(
    scale: str, iterations: int | None = None, assignments: Iterable[str] = ()
) -> DetectionSettings:
    """The settings of `scale` with `key=value` assignments applied; values are read as YAML."""
    if scale not in SCALES:
        raise InputError(f"--scale {scale!r} is not possible; choose {' or '.join(SCALES)}.")
    first = [] if iterations is None else [f"iterations={iterations}"]
    return override_group(
        SCALES[scale](), [*first, *assignments], owner="detection", example="lr=0.02"
    )


def protocol_name(settings: DetectionSettings) -> str:
    """What results are filed under: `coco` only where everything is as in the paper."""
    asked = settings.model_dump(exclude={"compute", "seed", "weights"})
    paper = full().model_dump(exclude={"compute", "seed", "weights"})
    name = "coco" if asked == paper else "coco-adapted"
    return name if settings.weights == "pretrained" else f"{name}-random"
