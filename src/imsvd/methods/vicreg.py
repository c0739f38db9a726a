"""VICReg as a method: backbone, projector and the three regularizers (arXiv 2105.04906)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from imsvd.losses.vicreg import EPSILON, VICRegLoss
from imsvd.methods.base import MethodSettings
from imsvd.methods.pairwise import PairwiseMethod
from imsvd.networks import feature_width, projector


class VICRegSettings(MethodSettings):
    """Settings of VICReg; the defaults are the paper's for ImageNet."""

    name: Literal["vicreg"] = "vicreg"
    projector: tuple[int, ...] = Field(
        (8192, 8192, 8192),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    invariance_weight: float = Field(25.0, ge=0, description="λ, weight of the views' agreement")
    variance_weight: float = Field(25.0, ge=0, description="μ, weight of the hinge on deviations")
    covariance_weight: float = Field(1.0, ge=0, description="ν, weight of the decorrelation")

    admits_local_views: ClassVar[bool] = True


class VICReg(PairwiseMethod):
    """Two views through one network, tied, spread and decorrelated."""

    loss: VICRegLoss

    def __init__(self, settings: VICRegSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        self.backbone = backbone
        self.projector = projector((feature_width(backbone), *settings.projector))
        self.loss = VICRegLoss(
            settings.invariance_weight, settings.variance_weight, settings.covariance_weight
        )

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the terms of uncorrelated components of unit variance, and of a constant."""
        del batch_size
        none = {"invariance": 0.0, "variance": 0.0, "covariance": 0.0}
        missing = 1 - EPSILON**0.5
        return {
            "ideal": {**none, "total": 0.0},
            "collapsed": {
                **none,
                "variance": missing,
                "total": self.loss.weights["variance"] * missing,
            },
        }
