"""W-MSE as a method: backbone, projector and whitened embeddings (arXiv 2007.06346)."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from imsvd.losses.wmse import WMSELoss
from imsvd.methods.base import MethodOutput, ProjectedMethod, large_views
from imsvd.methods.settings import SMALL_LR, MethodSettings, Row, layer_widths


class WMSESettings(MethodSettings):
    """Settings of W-MSE; the defaults are the authors' for their largest data, Tiny ImageNet."""

    name: Literal["wmse"] = "wmse"
    projector: tuple[int, ...] = layer_widths(1024, 128)
    whitening_size: int = Field(
        256, ge=2, description="samples whitened together; must divide the batch"
    )
    iterations: int = Field(4, ge=1, description="random divisions of the batch that are averaged")
    shrinkage: float = Field(
        0.0, ge=0, lt=1, description="share of the identity in the covariances, against singularity"
    )

    admits_local_views: ClassVar = True
    labels: ClassVar = {"invariance": "TI"}
    smallest_sizes: ClassVar = {"projector": 8, "whitening_size": 16}
    # The authors use Adam; AdamW with so small a decay differs little.
    recipes: ClassVar = {
        "small": Row(
            "the authors' CIFAR settings at half the size, which fit a batch of 64; not searched",
            method={"projector": (1024, 32), "whitening_size": 64, "iterations": 1},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "the authors' command",
            method={"projector": (1024, 64), "whitening_size": 128, "iterations": 1},
            optimizer={"name": "adamw", "lr": 3e-3, "scale_lr": False}
            | {"weight_decay": 1e-6, "decay_all": False},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the authors' for Tiny ImageNet (none are published for ResNet-50), IMSVD's batch",
            optimizer={"name": "adamw", "lr": 2e-3, "scale_lr": False},
        ),
    }

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        least = 2 * self.projector[-1]
        if self.whitening_size < least:
            raise ValueError(
                f"method.whitening_size={self.whitening_size} is too small to whiten an embedding of "
                f"{self.projector[-1]} numbers; choose at least {least}, or narrow method.projector"
            )
        return self

    def fit_to_images(self, images: int, batch_size: int) -> Self:
        """Whiten a whole batch if it is smaller, and narrow the embedding accordingly."""
        del images
        if self.whitening_size <= batch_size:
            return self
        *hidden, width = self.projector
        narrow = min(width, max(1, batch_size // 2))
        return self.replace(whitening_size=batch_size, projector=[*hidden, narrow])


class WMSE(ProjectedMethod):
    """Views through one network, whitened and drawn together; all pairs of views count alike."""

    def __init__(self, settings: WMSESettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        super().__init__(backbone, settings.projector)
        self.loss = WMSELoss(settings.whitening_size, settings.iterations, settings.shrinkage)

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss of all views together."""
        del samples
        features, embeddings = self.project(views)
        loss, terms = self.loss(*embeddings)
        return MethodOutput(loss, terms, large_views(features), embeddings[0].detach())

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the loss of equal views, and of unrelated ones."""
        del batch_size
        return {
            "ideal": {"invariance": 0.0, "total": 0.0},
            "unrelated": {"invariance": 2.0, "total": 2.0},
        }
