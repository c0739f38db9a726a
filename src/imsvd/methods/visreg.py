"""VISReg as a method: backbone, projector, prediction and three regularizers (arXiv 2606.02572)."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from imsvd.losses.visreg import VISRegLoss
from imsvd.methods.settings import SMALL_LR, MethodSettings, Row, layer_widths
from imsvd.methods.slicing import SlicedMethod


class VISRegSettings(MethodSettings):
    """Settings of VISReg; the defaults are the authors' for ImageNet."""

    name: Literal["visreg"] = "visreg"
    projector: tuple[int, ...] = layer_widths(2048, 2048, 256)
    regularization_weight: float = Field(
        0.9, ge=0, le=1, description="λ, weight of the regularizers; the prediction has 1 − λ"
    )
    scale_weight: float = Field(1.0, ge=0, description="weight of the standard deviations")
    shape_weight: float = Field(
        1.0, ge=0, description="weight of the shape along random directions"
    )
    center_weight: float = Field(1.0, ge=0, description="weight of the means")
    num_slices: int = Field(4096, ge=1, description="random directions per step")

    admits_local_views: ClassVar = True
    labels: ClassVar = {"prediction": "pred", "center": "cent"}
    smallest_sizes: ClassVar = {"projector": 8, "num_slices": 8}
    recipes: ClassVar = {
        "small": Row(
            "chosen for short runs on a CPU; λ as the authors' for Imagenette",
            method={"projector": (1024, 128), "regularization_weight": 0.6, "num_slices": 256},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "head, λ and rate of the authors' Imagenette configuration (ViT); weight decay as LeJEPA's "
            "for ResNets; not searched",
            method={"projector": (2048, 2048, 128), "regularization_weight": 0.6},
            optimizer={"name": "adamw", "lr": 1e-3, "scale_lr": False}
            | {"weight_decay": 5e-4, "decay_all": False},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "head, loss and rate of the authors' ViT-B configuration; weight decay and batch as LeJEPA's",
            optimizer={"name": "adamw", "lr": 9e-4, "scale_lr": False, "weight_decay": 5e-4},
            training={"batch_size": 512},
        ),
    }


class VISReg(SlicedMethod):
    """All views of an image meet; center, scale and shape of a batch's embeddings are normal."""

    loss: VISRegLoss

    def __init__(self, settings: VISRegSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        super().__init__(backbone, settings.projector, settings.num_slices)
        self.loss = VISRegLoss(
            settings.regularization_weight,
            settings.scale_weight,
            settings.shape_weight,
            settings.center_weight,
        )
