"""Settings of Mask R-CNN C4, at the paper's scale and at a scale for CPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field, field_validator, model_validator

from imsvd.config import ComputeSettings
from imsvd.errors import InputError
from imsvd.settings import Settings, override_group


class DetectionSettings(Settings):
    """Settings of the detector and its training; the defaults are the paper's 1× schedule.

    They follow Detectron2's Mask R-CNN C4 with MoCo's changes for self-supervised encoders
    (arXiv:1911.05722, appendix): nothing frozen, synchronized BatchNorm, one more norm after conv5.
    """

    seed: int = Field(0, ge=0)
    weights: Literal["pretrained", "random"] = Field(
        "pretrained", description="random: the same network without pretraining, as a baseline"
    )
    iterations: int = Field(90_000, ge=1)
    batch_size: int = Field(16, ge=1, description="images per step, summed over all processes")
    lr: float = Field(0.1, gt=0, description="the paper's; Detectron2's default is 0.02")
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(
        1e-4, ge=0, description="applied to all weights except those of norms"
    )
    warmup_share: float = Field(
        1 / 90, ge=0, lt=1, description="fraction of the iterations in which the rate rises from 0"
    )
    decay_at: tuple[float, ...] = Field(
        (2 / 3, 8 / 9),
        description="fractions of the iterations after which the rate is divided by 10",
    )
    sizes: tuple[int, ...] = Field(
        (640, 672, 704, 736, 768, 800),
        min_length=1,
        description="shorter sides drawn in training; the last is used for testing",
    )
    max_size: int = Field(1333, ge=1, description="largest longer side in pixels")
    anchor_sizes: tuple[int, ...] = Field(
        (32, 64, 128, 256, 512), min_length=1, description="sides of the anchors in pixels"
    )
    anchor_ratios: tuple[float, ...] = Field(
        (0.5, 1.0, 2.0), min_length=1, description="height / width of the anchors"
    )
    candidates: tuple[int, int] = Field(
        (12_000, 6_000), description="best anchors kept before suppression, in training and testing"
    )
    proposals: tuple[int, int] = Field(
        (2_000, 1_000), description="proposals kept after suppression, in training and testing"
    )
    anchors_per_image: int = Field(256, ge=2, description="anchors sampled for the loss")
    regions_per_image: int = Field(512, ge=2, description="proposals sampled for the loss")
    sampling_ratio: int = Field(
        0, ge=0, description="RoIAlign's sampling points per bin and side; 0: by the region's size"
    )
    mask_channels: int = Field(256, ge=8, description="width of the mask head's deconvolution")
    norm: Literal["trained", "frozen"] = Field(
        "trained",
        description="BatchNorm: trained, with one more after conv5, or frozen as pretrained",
    )
    precise_batches: int = Field(
        200,
        ge=0,
        description="batches over which BatchNorm's statistics are averaged before testing",
    )
    compute: ComputeSettings = ComputeSettings(precision="32-true")

    @field_validator("decay_at")
    @classmethod
    def _check_decay(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < share <= 1 for share in value):
            raise ValueError(
                f"{list(value)} must be fractions of the iterations, above 0 and at most 1"
            )
        return value

    @field_validator("sizes", "anchor_sizes", "candidates", "proposals", "anchor_ratios")
    @classmethod
    def _check_positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(number <= 0 for number in value):
            raise ValueError(f"{list(value)} must contain only numbers above 0")
        return value

    @model_validator(mode="after")
    def _check_sizes(self) -> DetectionSettings:
        if max(self.sizes) > self.max_size:
            raise ValueError(
                f"sizes={list(self.sizes)} exceed max_size={self.max_size}; raise max_size"
            )
        return self

    def learning_rate(self, step: int) -> float:
        """Return the rate of `step`, counted from 0: linear warm-up, then step decay."""
        warmup = round(self.warmup_share * self.iterations)
        decays = sum(step >= round(share * self.iterations) for share in self.decay_at)
        rise = (step + 1) / warmup if step < warmup else 1.0
        return float(self.lr * rise * 0.1**decays)


def full() -> DetectionSettings:
    """Return the paper's settings: 90,000 iterations of 16 images, for several GPUs."""
    return DetectionSettings()


def small() -> DetectionSettings:
    """Return settings for scenes of about 128 pixels, a few minutes on two CPU cores."""
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
    """Return "full" if there is a GPU, else "small"."""
    return "full" if torch.cuda.is_available() else "small"


def resolve_settings(
    scale: str, iterations: int | None = None, assignments: Iterable[str] = ()
) -> DetectionSettings:
    """Return the settings of `scale` with `key=value` assignments applied; values are YAML."""
    if scale not in SCALES:
        raise InputError(f"there is no scale {scale!r}; choose {' or '.join(SCALES)}.")
    first = [] if iterations is None else [f"iterations={iterations}"]
    return override_group(
        SCALES[scale](), [*first, *assignments], owner="detection", example="lr=0.02"
    )


def protocol_name(settings: DetectionSettings) -> str:
    """Return the name of the result: `coco` only if all settings are the paper's."""
    chosen = settings.model_dump(exclude={"compute", "seed", "weights"})
    paper = full().model_dump(exclude={"compute", "seed", "weights"})
    name = "coco" if chosen == paper else "coco-adapted"
    return name if settings.weights == "pretrained" else f"{name}-random"
