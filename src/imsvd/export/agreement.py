"""Whether an exported network, loaded by the library it is for, computes what ours does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from imsvd.encoder import Encoder
from imsvd.errors import InputError

TOLERANCE = 1e-5
"""Largest difference, as a share of the largest feature."""


def sample_images(encoder: Encoder, batch: int = 2) -> Tensor:
    """Return the same random images in [0, 1] every time, (batch, 3, size, size)."""
    side = encoder.description.size
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, 3, side, side, generator=generator)


def differs(expected: Tensor, actual: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two outputs are not the same up to rounding."""
    scale = float(expected.abs().max())
    return expected.shape != actual.shape or not bool(
        (expected - actual).abs().max() <= tolerance * scale
    )


def require_agreement(
    encoder: Encoder, other: Callable[[Tensor], Tensor], library: str, remedy: str
) -> None:
    """Refuse unless `other` gives our features for normalized images."""
    images = sample_images(encoder)
    with torch.no_grad():
        expected = encoder.features(images)
        actual = other(encoder.normalize(images))
    if differs(expected, actual):
        raise InputError(
            f"{library}'s {encoder.description.backbone.name} does not compute what this encoder "
            f"does, so it was not written; {remedy}."
        )
