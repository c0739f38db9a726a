"""W-MSE as a method: backbone, projector and whitened embeddings (arXiv 2007.06346)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from imsvd.losses.wmse import WMSELoss
from imsvd.methods.base import Method, MethodOutput, MethodSettings
from imsvd.networks import feature_width, projector


class WMSESettings(MethodSettings):
    """Settings of W-MSE; the defaults are the authors' for their largest data, Tiny ImageNet."""

    name: Literal["wmse"] = "wmse"
    projector: tuple[int, ...] = Field(
        (1024, 128),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    whitening_size: int = Field(
        256, ge=2, description="samples that are whitened together; divides the batch"
    )
    iterations: int = Field(4, ge=1, description="random divisions of the batch that are averaged")
    shrinkage: float = Field(
        0.0, ge=0, lt=1, description="share of the identity in the covariances, against singularity"
    )

    admits_local_views: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        least = 2 * self.projector[-1]
        if self.whitening_size < least:
            raise ValueError(
                f"method.whitening_size={self.whitening_size} is too small to whiten an embedding of "
                f"{self.projector[-1]} numbers; choose at least {least}, or narrow method.projector"
            )
        return self


class WMSE(Method):
    """Views through one network, whitened and drawn together; all pairs of views count alike."""

    def __init__(self, settings: WMSESettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        self.backbone = backbone
        self.projector = projector((feature_width(backbone), *settings.projector))
        self.loss = WMSELoss(settings.whitening_size, settings.iterations, settings.shrinkage)

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss; each view is its own pass, because BatchNorm must not mix them."""
        del samples
        features = [self.backbone(view) for view in views]
        embeddings = [self.projector(feature) for feature in features]
        loss, terms = self.loss(*embeddings)
        return MethodOutput(loss, terms, features[0].detach(), embeddings[0].detach())

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the loss of equal views, and of views that have nothing in common."""
        del batch_size
        return {
            "ideal": {"invariance": 0.0, "total": 0.0},
            "unrelated": {"invariance": 2.0, "total": 2.0},
        }
