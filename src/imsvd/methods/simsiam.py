"""SimSiam as a method: one network, a predictor and a stop-gradient (arXiv 2011.10566)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from imsvd.losses.simsiam import SimSiamLoss
from imsvd.methods.base import Method, MethodOutput, MethodSettings, average_terms
from imsvd.methods.predictions import prediction_pairs
from imsvd.networks import feature_width, projector


class SimSiamSettings(MethodSettings):
    """Settings of SimSiam; the defaults are the paper's for ImageNet."""

    name: Literal["simsiam"] = "simsiam"
    projector: tuple[int, ...] = Field(
        (2048, 2048, 2048),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    predictor: int = Field(512, ge=1, description="hidden width of the predictor, a bottleneck")

    admits_local_views: ClassVar[bool] = True


class SimSiam(Method):
    """Every view predicts the embeddings of the other large views, which get no gradient."""

    def __init__(
        self, settings: SimSiamSettings, backbone: nn.Module, num_samples: int = 0
    ) -> None:
        super().__init__()
        del num_samples
        width = settings.projector[-1]
        self.backbone = backbone
        self.projector = projector(
            (feature_width(backbone), *settings.projector), last="norm_without_affine"
        )
        self.predictor = projector((width, settings.predictor, width), last="bias")
        self.loss = SimSiamLoss()

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss; each view is its own pass, because BatchNorm must not mix them."""
        del samples
        features = [self.backbone(view) for view in views]
        embeddings = [self.projector(feature) for feature in features]
        predictions = [self.predictor(embedding) for embedding in embeddings]
        pairs = prediction_pairs(len(views))
        outputs = [self.loss(predictions[view], embeddings[target]) for view, target in pairs]
        return MethodOutput(
            torch.stack([output.loss for output in outputs]).mean(),
            average_terms([output.terms for output in outputs]),
            features[0].detach(),
            embeddings[0].detach(),
        )

    def constant_lr_modules(self) -> Sequence[nn.Module]:
        """Return the predictor: it must keep up with embeddings that go on changing."""
        return (self.predictor,)

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the values of exact predictions and of unrelated ones."""
        del batch_size
        return {
            "ideal": {"cosine": 1.0, "total": -1.0},
            "unrelated": {"cosine": 0.0, "total": 0.0},
        }
