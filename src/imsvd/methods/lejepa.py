"""LeJEPA as a method: backbone, projector, prediction and SIGReg (arXiv 2511.08544).

There is no predictor, no momentum network and no stop-gradient.
"""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import nn

from imsvd.losses.lejepa import LeJEPALoss
from imsvd.methods.settings import SMALL_LR, MethodSettings, Row, layer_widths
from imsvd.methods.slicing import SlicedMethod


class LeJEPASettings(MethodSettings):
    """Settings of LeJEPA; the defaults are those that the paper recommends."""

    name: Literal["lejepa"] = "lejepa"
    projector: tuple[int, ...] = layer_widths(2048, 2048, 128)
    regularization_weight: float = Field(
        0.05, ge=0, le=1, description="λ, weight of SIGReg; the prediction has 1 − λ"
    )
    num_slices: int = Field(1024, ge=1, description="random directions per step")
    integration_points: int = Field(
        17, ge=3, description="points of the integral over frequencies, odd"
    )
    integration_limit: float = Field(5.0, gt=0, description="largest frequency of the integral")

    admits_local_views: ClassVar = True
    labels: ClassVar = {"prediction": "pred", "sigreg": "SIG"}
    smallest_sizes: ClassVar = {"projector": 8, "num_slices": 8}
    recipes: ClassVar = {
        "small": Row(
            "chosen for short runs on a CPU; the 256 directions of the paper's Algorithm 1",
            method={"projector": (1024, 128), "num_slices": 256},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "rate, batch and 256 directions of the authors' minimal example (Imagenette, ViT), their "
            "weight decay for ResNets; not searched",
            method={"num_slices": 256},
            optimizer={"name": "adamw", "lr": 2e-3, "scale_lr": False}
            | {"weight_decay": 5e-4, "decay_all": True},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the paper's λ, integral and directions, the authors' rate and weight decay for ResNets and "
            "the best batch of the paper's Table 1c",
            optimizer={"name": "adamw", "lr": 5e-4, "scale_lr": False}
            | {"weight_decay": 5e-4, "decay_all": True},
            training={"batch_size": 512},
        ),
    }

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        if self.integration_points % 2 == 0:
            raise ValueError(
                f"integration_points={self.integration_points} must be odd, so that 0 is one of them"
            )
        return self


class LeJEPA(SlicedMethod):
    """All views of an image meet, and the embeddings of a batch are normal along random lines."""

    loss: LeJEPALoss

    def __init__(self, settings: LeJEPASettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        super().__init__(backbone, settings.projector, settings.num_slices)
        self.loss = LeJEPALoss(
            settings.regularization_weight, settings.integration_points, settings.integration_limit
        )
