"""NPID as a method: one network, a memory bank, instance discrimination (arXiv 1805.01978).

The paper shows one view of an image per step. Here each of the two views is a sample of the same
instance: both are told apart from the bank, and their mean direction updates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.npid import InstanceForm, NPIDLoss, draw_negatives
from imsvd.losses.output import LossOutput
from imsvd.methods.base import Method, MethodOutput, MethodSettings, average_terms
from imsvd.methods.memory_bank import MemoryBank
from imsvd.networks import feature_width, projector


class NPIDSettings(MethodSettings):
    """Settings of NPID; the defaults are the published ones for ImageNet."""

    name: Literal["npid"] = "npid"
    projector: tuple[int, ...] = Field(
        (128,),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    form: InstanceForm = Field(
        "nce",
        description="nce: against random images; softmax: exactly, against all (up to some 50,000)",
    )
    num_negatives: int = Field(4096, ge=1, description="random images per sample (m), for nce")
    temperature: float = Field(0.07, gt=0, description="temperature of the softmax (τ)")
    bank_momentum: float = Field(
        0.5, ge=0, lt=1, description="share of a remembered vector that an update keeps"
    )
    proximal_weight: float = Field(
        0.0, ge=0, description="weight of the distance to the remembered vector (λ); 0 as released"
    )

    admits_local_views: ClassVar[bool] = True


class NPID(Method):
    """Every view is to be recognized among all images that the bank remembers."""

    steps: Tensor

    def __init__(self, settings: NPIDSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        self.num_negatives = settings.num_negatives
        self.backbone = backbone
        self.projector = projector((feature_width(backbone), *settings.projector), last="bias")
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
        """Compute the loss of each view against the bank, and their mean."""
        features = [self.backbone(view) for view in views]
        embeddings = [self.projector(feature) for feature in features]
        outputs = self.view_losses(embeddings, samples)
        self._seen = samples, mean_direction(embeddings[:2])
        return MethodOutput(
            torch.stack([output.loss for output in outputs]).mean(),
            average_terms([output.terms for output in outputs]),
            features[0].detach(),
            embeddings[0].detach(),
        )

    def after_step(self, progress: float) -> None:
        """Let the bank follow; only now, because backward still needed the old one."""
        del progress
        self.steps += 1
        if self._seen is not None:
            self.bank.update(*self._seen)
            self._seen = None

    def view_losses(self, embeddings: Sequence[Tensor], samples: Tensor) -> list[LossOutput]:
        """Compute the loss of every view; all of them get the same negatives."""
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
