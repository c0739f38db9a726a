"""SimCLR as a method: backbone, projector and NT-Xent (arXiv 2002.05709)."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from imsvd.losses.simclr import SimCLRLoss
from imsvd.methods.base import PairwiseMethod
from imsvd.methods.settings import CLIPPED_LARS, CONTRASTIVE_LR, MethodSettings, Row, layer_widths


class SimCLRSettings(MethodSettings):
    """Settings of SimCLR; the defaults are the paper's for ImageNet."""

    name: Literal["simclr"] = "simclr"
    projector: tuple[int, ...] = layer_widths(2048, 128)
    temperature: float = Field(0.1, gt=0, description="τ, divisor of the cosines")

    admits_local_views: ClassVar = True
    labels: ClassVar = {"attraction": "attr", "repulsion": "repul"}
    smallest_sizes: ClassVar = {"projector": 8}
    recipes: ClassVar = {
        "small": Row(
            "chosen for short runs on a CPU; few negatives need a higher temperature",
            method={"projector": (512, 128), "temperature": 0.2},
            optimizer=CONTRASTIVE_LR,
        ),
        "cifar10": Row(
            "solo-learn's run of 1,000 epochs (90.7 % linear), not repeated here",
            method={"projector": (2048, 256), "temperature": 0.2},
            optimizer={**CLIPPED_LARS, "lr": 0.4, "weight_decay": 1e-4, "final_lr_ratio": 0},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the paper's (arXiv 2002.05709)",
            optimizer={"lr": 0.3, "final_lr_ratio": 0},
            training={"batch_size": 4096},
        ),
    }


class SimCLR(PairwiseMethod):
    """Two views through one network; each must find the other among all images of the batch.

    As in the authors' code, a BatchNorm follows the last layer of the projector too.
    """

    loss: SimCLRLoss

    def __init__(self, settings: SimCLRSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        super().__init__(backbone, settings.projector, last="norm")
        self.loss = SimCLRLoss(settings.temperature)

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the ideal and the collapsed value."""
        return self.loss.bounds(batch_size)
