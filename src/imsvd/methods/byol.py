"""BYOL as a method: online network, predictor and momentum target (arXiv 2006.07733)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from imsvd.losses.byol import BYOLLoss
from imsvd.methods.base import Method, MethodOutput, MethodSettings, average_terms
from imsvd.methods.momentum import cosine_momentum, momentum_copy, update_momentum
from imsvd.methods.predictions import prediction_pairs
from imsvd.networks import feature_width, projector


class BYOLSettings(MethodSettings):
    """Settings of BYOL; the defaults are the paper's for ImageNet."""

    name: Literal["byol"] = "byol"
    projector: tuple[int, ...] = Field(
        (4096, 256),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    predictor: int = Field(4096, ge=1, description="hidden width of the predictor")
    momentum: float = Field(
        0.99, ge=0, le=1, description="momentum of the target at the start; rises to 1 at the end"
    )

    admits_local_views: ClassVar[bool] = True


class BYOL(Method):
    """Every view predicts what a moving average of the network makes of the other large views."""

    def __init__(self, settings: BYOLSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        width = settings.projector[-1]
        self.momentum = settings.momentum
        self.backbone = backbone
        self.projector = projector((feature_width(backbone), *settings.projector))
        self.predictor = projector((width, settings.predictor, width))
        self.target = momentum_copy(self.backbone, self.projector)
        self.loss = BYOLLoss()

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss; the two directions of a pair of views are added, as in the paper."""
        del samples
        features = [self.backbone(view) for view in views]
        predictions = [self.predictor(self.projector(feature)) for feature in features]
        with torch.no_grad():
            targets = [self.target(view) for view in views[:2]]
        pairs = prediction_pairs(len(views))
        outputs = [self.loss(predictions[view], targets[target]) for view, target in pairs]
        return MethodOutput(
            2 * torch.stack([output.loss for output in outputs]).mean(),
            average_terms([output.terms for output in outputs]),
            features[0].detach(),
            predictions[0].detach(),
        )

    def after_step(self, progress: float) -> None:
        """Move the target toward the online network, ever more slowly."""
        online = nn.Sequential(self.backbone, self.projector)
        update_momentum(self.target, online, cosine_momentum(self.momentum, progress))

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the values of exact predictions and of unrelated ones."""
        del batch_size
        return {
            "ideal": {"cosine": 1.0, "total": 0.0},
            "unrelated": {"cosine": 0.0, "total": 4.0},
        }
