"""VICReg as a method: backbone, projector and the three regularizers (arXiv 2105.04906)."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from imsvd.losses.vicreg import EPSILON, VICRegLoss
from imsvd.methods.base import PairwiseMethod
from imsvd.methods.settings import CLIPPED_LARS, SMALL_LR, MethodSettings, Row, layer_widths


class VICRegSettings(MethodSettings):
    """Settings of VICReg; the defaults are the paper's for ImageNet."""

    name: Literal["vicreg"] = "vicreg"
    projector: tuple[int, ...] = layer_widths(8192, 8192, 8192)
    invariance_weight: float = Field(25.0, ge=0, description="λ, weight of the views' agreement")
    variance_weight: float = Field(25.0, ge=0, description="μ, weight of the hinge on deviations")
    covariance_weight: float = Field(1.0, ge=0, description="ν, weight of the decorrelation")

    admits_local_views: ClassVar = True
    labels: ClassVar = {"invariance": "TI", "variance": "var", "covariance": "cov"}
    smallest_sizes: ClassVar = {"projector": 8}
    recipes: ClassVar = {
        "small": Row(
            "chosen by experience, not searched",
            method={"projector": (1024, 1024)},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "solo-learn's run of 1,000 epochs (92 % linear)",
            method={"projector": (2048, 2048, 2048)},
            optimizer={**CLIPPED_LARS, "lr": 0.3, "weight_decay": 1e-4},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the authors' command for 100 epochs (for 1,000: batch 2048, learning rate 0.2)",
            optimizer={"lr": 0.3},
            training={"batch_size": 512},
        ),
    }


class VICReg(PairwiseMethod):
    """Two views through one network, tied, spread and decorrelated."""

    loss: VICRegLoss

    def __init__(self, settings: VICRegSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        super().__init__(backbone, settings.projector)
        self.loss = VICRegLoss(
            settings.invariance_weight, settings.variance_weight, settings.covariance_weight
        )

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the terms of uncorrelated components of unit variance, and of a constant."""
        del batch_size
        none = {"invariance": 0.0, "variance": 0.0, "covariance": 0.0}
        missing = 1 - EPSILON**0.5
        total = self.loss.weights["variance"] * missing
        return {
            "ideal": {**none, "total": 0.0},
            "collapsed": {**none, "variance": missing, "total": total},
        }
