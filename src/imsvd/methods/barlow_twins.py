"""Barlow Twins as a method: backbone, projector and redundancy reduction (arXiv 2103.03230)."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from imsvd.losses.barlow_twins import BarlowTwinsLoss
from imsvd.methods.base import PairwiseMethod
from imsvd.methods.settings import CLIPPED_LARS, SMALL_LR, MethodSettings, Row, layer_widths


class BarlowTwinsSettings(MethodSettings):
    """Settings of Barlow Twins; the defaults are the paper's for ImageNet."""

    name: Literal["barlow_twins"] = "barlow_twins"
    projector: tuple[int, ...] = layer_widths(8192, 8192, 8192)
    redundancy_weight: float = Field(
        0.0051, ge=0, description="λ, weight of the off-diagonal correlations"
    )

    admits_local_views: ClassVar = True
    labels: ClassVar = {"invariance": "TI", "redundancy": "redun"}
    smallest_sizes: ClassVar = {"projector": 8}
    # solo-learn multiplies the loss by 0.1. LARS cancels that factor for weights but not for biases
    # and norms, whose rate is lowered here instead.
    recipes: ClassVar = {
        "small": Row(
            "chosen by experience, not searched",
            method={"projector": (1024, 1024)},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "solo-learn's run of 1,000 epochs (92 % linear)",
            method={"projector": (2048, 2048, 2048)},
            optimizer={**CLIPPED_LARS, "lr": 0.3, "vector_lr_ratio": 0.1, "weight_decay": 1e-4},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the authors' for 300 and 1,000 epochs; biases and norms learn at 0.0048, weights at 0.2",
            optimizer={"lr": 0.2, "vector_lr_ratio": 0.024},
        ),
    }


class BarlowTwins(PairwiseMethod):
    """Two views through one network; the loss pulls their cross-correlation to the identity."""

    loss: BarlowTwinsLoss

    def __init__(
        self, settings: BarlowTwinsSettings, backbone: nn.Module, num_samples: int = 0
    ) -> None:
        del num_samples
        super().__init__(backbone, settings.projector)
        self.width = settings.projector[-1]
        self.loss = BarlowTwinsLoss(settings.redundancy_weight)

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the terms of a correlation that is the identity, and of a constant embedding."""
        del batch_size
        width = float(self.width)
        return {
            "ideal": {"invariance": 0.0, "redundancy": 0.0, "total": 0.0},
            "collapsed": {"invariance": width, "redundancy": 0.0, "total": width},
        }
