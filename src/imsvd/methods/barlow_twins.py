"""Barlow Twins as a method: backbone, projector and redundancy reduction (arXiv 2103.03230)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from imsvd.losses.barlow_twins import BarlowTwinsLoss
from imsvd.methods.base import MethodSettings
from imsvd.methods.pairwise import PairwiseMethod
from imsvd.networks import feature_width, projector


class BarlowTwinsSettings(MethodSettings):
    """Settings of Barlow Twins; the defaults are the paper's for ImageNet."""

    name: Literal["barlow_twins"] = "barlow_twins"
    projector: tuple[int, ...] = Field(
        (8192, 8192, 8192),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    redundancy_weight: float = Field(
        0.0051, ge=0, description="λ, weight of the off-diagonal correlations"
    )

    admits_local_views: ClassVar[bool] = True


class BarlowTwins(PairwiseMethod):
    """Two views through one network, whose cross-correlation is to be the identity."""

    loss: BarlowTwinsLoss

    def __init__(
        self, settings: BarlowTwinsSettings, backbone: nn.Module, num_samples: int = 0
    ) -> None:
        super().__init__()
        del num_samples
        self.width = settings.projector[-1]
        self.backbone = backbone
        self.projector = projector((feature_width(backbone), *settings.projector))
        self.loss = BarlowTwinsLoss(settings.redundancy_weight)

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the terms of a correlation that is the identity, and of a constant embedding."""
        del batch_size
        width = float(self.width)
        return {
            "ideal": {"invariance": 0.0, "redundancy": 0.0, "total": 0.0},
            "collapsed": {"invariance": width, "redundancy": 0.0, "total": width},
        }
