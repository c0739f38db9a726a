"""SimCLR as a method: backbone, projector and NT-Xent (arXiv 2002.05709)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from imsvd.losses.simclr import SimCLRLoss
from imsvd.methods.base import MethodSettings
from imsvd.methods.pairwise import PairwiseMethod
from imsvd.networks import feature_width, projector


class SimCLRSettings(MethodSettings):
    """Settings of SimCLR; the defaults are the paper's for ImageNet."""

    name: Literal["simclr"] = "simclr"
    projector: tuple[int, ...] = Field(
        (2048, 128),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    temperature: float = Field(0.1, gt=0, description="τ, by which cosines are divided")

    admits_local_views: ClassVar[bool] = True


class SimCLR(PairwiseMethod):
    """Two views through one network; each must find the other among all images of the batch.

    As in the authors' code, a BatchNorm follows the last layer of the projector too.
    """

    loss: SimCLRLoss

    def __init__(self, settings: SimCLRSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        self.backbone = backbone
        widths = (feature_width(backbone), *settings.projector)
        self.projector = projector(widths, last="norm")
        self.loss = SimCLRLoss(settings.temperature)

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the ideal and the collapsed value."""
        return self.loss.bounds(batch_size)
