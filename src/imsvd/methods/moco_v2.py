"""MoCo v2 as a method: queries, momentum keys and a queue of earlier keys (arXiv 2003.04297)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.moco_v2 import MoCoV2Loss
from imsvd.methods.base import Method, MethodOutput, MethodSettings, average_terms
from imsvd.methods.momentum import momentum_copy, update_momentum
from imsvd.methods.queue import EmbeddingQueue
from imsvd.networks import feature_width, projector


class MoCoV2Settings(MethodSettings):
    """Settings of MoCo v2; the defaults are the paper's for ImageNet."""

    name: Literal["moco_v2"] = "moco_v2"
    projector: tuple[int, ...] = Field(
        (2048, 128),
        min_length=1,
        description="widths of the projector's layers, without BatchNorm; the last is the embedding",
    )
    temperature: float = Field(0.2, gt=0, description="τ, by which cosines are divided")
    momentum: float = Field(0.999, ge=0, le=1, description="momentum of the key network")
    queue_length: int = Field(
        65536, ge=1, description="how many earlier keys are negatives; at least one step's keys"
    )
    symmetric: bool = Field(
        False, description="whether each view is query and key in turn, for twice the passes"
    )


class MoCoV2(Method):
    """The first view must find its key, made of the second, among the keys of earlier batches.

    The authors shuffle samples between GPUs so that BatchNorm statistics cannot give the key away;
    synchronised BatchNorm, in query and key network, serves the same end here.
    """

    def __init__(self, settings: MoCoV2Settings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        self.momentum = settings.momentum
        self.pairs = ((0, 1), (1, 0)) if settings.symmetric else ((0, 1),)
        self.backbone = backbone
        widths = (feature_width(backbone), *settings.projector)
        self.projector = projector(widths, hidden_norm=False, last="bias")
        self.target = momentum_copy(self.backbone, self.projector)
        self.queue = EmbeddingQueue(settings.queue_length, widths[-1])
        self.loss = MoCoV2Loss(settings.temperature)
        distributed.keep_from_broadcast(self, ["queue."])

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss against the queue as it was, then let this step's keys into it."""
        del samples
        features = [self.backbone(views[query]) for query, _ in self.pairs]
        queries = [self.projector(feature) for feature in features]
        with torch.no_grad():
            keys = [at_least_float32(self.target(views[key])) for _, key in self.pairs]
        negatives = self.queue.values.clone()  # the backward pass must not find newer ones
        outputs = [
            self.loss(query, key, negatives) for query, key in zip(queries, keys, strict=True)
        ]
        for key in keys:
            self.queue.push(F.normalize(key, dim=1))
        return MethodOutput(
            torch.stack([output.loss for output in outputs]).mean(),
            average_terms([output.terms for output in outputs]),
            features[0].detach(),
            queries[0].detach(),
        )

    def after_step(self, progress: float) -> None:
        """Move the key network towards the query network."""
        del progress
        online = nn.Sequential(self.backbone, self.projector)
        update_momentum(self.target, online, self.momentum)

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the ideal and the collapsed value, which the queue sets rather than the batch."""
        del batch_size
        return self.loss.bounds(len(self.queue.values))
