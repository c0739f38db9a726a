"""CorInfoMax as a method: backbone, projector and log-determinants (arXiv 2209.07999)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd.information import at_least_float32
from imsvd.losses.corinfomax import CorInfoMaxLoss
from imsvd.methods.base import MethodOutput, ProjectedMethod, large_views
from imsvd.methods.settings import SMALL_LR, MethodSettings, Row, layer_widths


def _sgd(lr: float) -> dict[str, Any]:
    """The authors' SGD: rates do not scale with the batch and the cosine ends at 1e-6."""
    return {"name": "sgd", "lr": lr, "scale_lr": False, "weight_decay": 1e-4, "decay_all": True} | {
        "final_lr_ratio": 1e-6 / lr
    }


class CorInfoMaxSettings(MethodSettings):
    """Settings of CorInfoMax; the defaults are the paper's for ImageNet."""

    name: Literal["corinfomax"] = "corinfomax"
    projector: tuple[int, ...] = layer_widths(8192, 8192, 512)
    invariance_weight: float = Field(2000.0, ge=0, description="α, weight of the views' agreement")
    forgetting: float = Field(
        0.1, ge=0, lt=1, description="λ, share of the past in the running mean and covariance"
    )
    epsilon: float = Field(1e-8, gt=0, description="ε, added to the diagonal of the covariances")

    labels: ClassVar = {"invariance": "TI", "log_volume": "logV"}
    smallest_sizes: ClassVar = {"projector": 8}
    recipes: ClassVar = {
        "small": Row(
            "the weight of the CIFAR command with a narrower head; not searched",
            method={"projector": (1024, 64), "invariance_weight": 250.0, "forgetting": 0.1},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "the authors' command",
            method={"projector": (2048, 2048, 64), "invariance_weight": 250.0, "forgetting": 0.01},
            optimizer=_sgd(lr=0.5),
        ),
        "imagenet": Row(
            "the authors' command", optimizer=_sgd(lr=0.2), training={"batch_size": 1536}
        ),
    }


class CorInfoMax(ProjectedMethod):
    """Two views through one network to the unit sphere; the loss enlarges their covariances.

    Each view has a running covariance of its own, so there can be only two.
    """

    def __init__(
        self, settings: CorInfoMaxSettings, backbone: nn.Module, num_samples: int = 0
    ) -> None:
        del num_samples
        super().__init__(backbone, settings.projector)
        self.loss = CorInfoMaxLoss(
            settings.projector[-1],
            settings.invariance_weight,
            settings.forgetting,
            settings.epsilon,
        )

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss of the two views' directions."""
        del samples
        features, embeddings = self.project(views)
        first, second = (F.normalize(at_least_float32(view), dim=1) for view in embeddings)
        loss, terms = self.loss(first, second)
        return MethodOutput(loss, terms, large_views(features), first.detach())
