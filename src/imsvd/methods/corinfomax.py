"""CorInfoMax as a method: backbone, projector and log-determinants (arXiv 2209.07999)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd.information import at_least_float32
from imsvd.losses.corinfomax import CorInfoMaxLoss
from imsvd.methods.base import Method, MethodOutput, MethodSettings
from imsvd.networks import feature_width, projector


class CorInfoMaxSettings(MethodSettings):
    """Settings of CorInfoMax; the defaults are the paper's for ImageNet."""

    name: Literal["corinfomax"] = "corinfomax"
    projector: tuple[int, ...] = Field(
        (8192, 8192, 512),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    invariance_weight: float = Field(2000.0, ge=0, description="α, weight of the views' agreement")
    forgetting: float = Field(
        0.1, ge=0, lt=1, description="λ, share of the past in the running mean and covariance"
    )
    epsilon: float = Field(1e-8, gt=0, description="ε, added to the diagonal of the covariances")


class CorInfoMax(Method):
    """Two views through one network to the unit sphere, whose covariances are to be large.

    The two views have a running covariance each, so there can be no further ones.
    """

    def __init__(
        self, settings: CorInfoMaxSettings, backbone: nn.Module, num_samples: int = 0
    ) -> None:
        super().__init__()
        del num_samples
        self.backbone = backbone
        self.projector = projector((feature_width(backbone), *settings.projector))
        self.loss = CorInfoMaxLoss(
            settings.projector[-1],
            settings.invariance_weight,
            settings.forgetting,
            settings.epsilon,
        )

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss; each view is its own pass, because BatchNorm must not mix them."""
        del samples
        features = [self.backbone(view) for view in views]
        embeddings = [at_least_float32(self.projector(feature)) for feature in features]
        first, second = (F.normalize(embedding, dim=1) for embedding in embeddings)
        loss, terms = self.loss(first, second)
        return MethodOutput(loss, terms, features[0].detach(), first.detach())
