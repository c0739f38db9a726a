"""NPID as a method: one network, a memory bank, instance discrimination (arXiv 1805.01978).

The paper uses one view of an image per step. Here each view is a sample of the same instance: all
are discriminated from the bank, and the mean direction of the two large ones updates it.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.base import LossOutput
from imsvd.losses.npid import InstanceForm, NPIDLoss, draw_negatives
from imsvd.methods.base import MethodOutput, ProjectedMethod, mean_output
from imsvd.methods.memory import MemoryBank
from imsvd.methods.settings import SMALL_LR, MethodSettings, Row, layer_widths


class NPIDSettings(MethodSettings):
    """Settings of NPID; the defaults are the published ones for ImageNet."""

    name: Literal["npid"] = "npid"
    projector: tuple[int, ...] = layer_widths(128)
    form: InstanceForm = Field(
        "nce",
        description="nce: against random images; softmax: against all images (up to some 50,000)",
    )
    num_negatives: int = Field(4096, ge=1, description="random images per sample (m), for nce")
    temperature: float = Field(0.07, gt=0, description="temperature of the softmax (τ)")
    bank_momentum: float = Field(
        0.5, ge=0, lt=1, description="share of an image's vector in the bank that an update keeps"
    )
    proximal_weight: float = Field(
        0.0, ge=0, description="weight of the distance to the vector in the bank (λ); 0 as released"
    )

    admits_local_views: ClassVar = True
    labels: ClassVar = {"instance_discrimination": "inst"}
    smallest_sizes: ClassVar = {"projector": 8, "num_negatives": 8}
    recipes: ClassVar = {
        "small": Row(
            "as cifar10, with AdamW; 10,000 images are few enough for the exact softmax",
            method={"form": "softmax", "temperature": 0.1},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "the authors' CIFAR script; batch and warm-up as for the other methods",
            method={"form": "softmax", "temperature": 0.1},
            optimizer={"lr": 0.06},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the authors' released command, with a cosine in place of their steps",
            optimizer={"name": "sgd", "lr": 0.03, "weight_decay": 1e-4}
            | {"decay_all": True, "warmup_epochs": 0},
            training={"batch_size": 256},
        ),
    }


class NPID(ProjectedMethod):
    """Every view must be recognized among all images of the memory bank."""

    steps: Tensor

    def __init__(self, settings: NPIDSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__(backbone, settings.projector, last="bias")
        self.num_negatives = settings.num_negatives
        self.bank = MemoryBank(num_samples, settings.projector[-1], settings.bank_momentum)
        self.loss = NPIDLoss(
            settings.form,
            temperature=settings.temperature,
            proximal_weight=settings.proximal_weight,
        )
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._seen: tuple[Tensor, Tensor] | None = None
        distributed.keep_from_broadcast(self, ["bank."])

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the mean loss of the views against the bank."""
        features, embeddings = self.project(views)
        outputs = self.view_losses(embeddings, samples)
        self._seen = samples, mean_direction(embeddings[:2])
        return mean_output(outputs, features, embeddings)

    def after_step(self, progress: float) -> None:
        """Update the bank; not earlier, because the backward pass needs the old one."""
        del progress
        self.steps += 1
        if self._seen is not None:
            self.bank.update(*self._seen)
            self._seen = None

    def view_losses(self, embeddings: Sequence[Tensor], samples: Tensor) -> list[LossOutput]:
        """Compute the loss of every view; all share the same negatives."""
        bank = self.bank.entries
        negatives = None
        if self.loss.form == "nce":
            generator = torch.Generator(samples.device).manual_seed(int(self.steps))
            negatives = draw_negatives(len(samples), len(bank), self.num_negatives, generator)
        return [self.loss(embedding, samples, bank, negatives) for embedding in embeddings]


@torch.no_grad()
def mean_direction(embeddings: Sequence[Tensor]) -> Tensor:
    """Mean of the directions of several views of the same images, `(batch, width)` each."""
    return torch.stack(
        [F.normalize(at_least_float32(embedding), dim=1) for embedding in embeddings]
    ).mean(0)
