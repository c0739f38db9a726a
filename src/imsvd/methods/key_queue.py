"""What MoCo v2 and PCL share: queries of one view, momentum keys of the other, a queue of earlier keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd.information import at_least_float32
from imsvd.methods.base import Method, MethodOutput, MethodSettings, average_terms
from imsvd.methods.momentum import momentum_copy, update_momentum
from imsvd.methods.queue import EmbeddingQueue
from imsvd.networks import feature_width, projector


class KeyQueueSettings(MethodSettings):
    """Settings of queries, keys and queue; a method adds its own."""

    projector: tuple[int, ...] = Field(
        (2048, 128),
        min_length=1,
        description="widths of the projector's layers, without BatchNorm; the last is the embedding",
    )
    momentum: float = Field(0.999, ge=0, le=1, description="momentum of the key network")
    queue_length: int = Field(
        65536, ge=1, description="how many earlier keys are negatives; at least one step's keys"
    )
    symmetric: bool = Field(
        False, description="whether each view is query and key in turn, for twice the passes"
    )


class KeyQueueMethod(Method):
    """The first view must find its key, made of the second, among the keys of earlier batches.

    A subclass sets `loss`, which maps queries and keys, (batch, width) each, the queue and what
    `contrasts` gives to a `LossOutput`.
    """

    loss: nn.Module

    def __init__(self, settings: KeyQueueSettings, backbone: nn.Module) -> None:
        super().__init__()
        self.momentum = settings.momentum
        self.pairs = ((0, 1), (1, 0)) if settings.symmetric else ((0, 1),)
        self.backbone = backbone
        widths = (feature_width(backbone), *settings.projector)
        self.projector = projector(widths, hidden_norm=False, last="bias")
        self.target = momentum_copy(self.backbone, self.projector)
        self.queue = EmbeddingQueue(settings.queue_length, widths[-1])

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss against the queue as it was, then let this step's keys into it."""
        features = [self.backbone(views[query]) for query, _ in self.pairs]
        queries = [self.projector(feature) for feature in features]
        with torch.no_grad():
            keys = [at_least_float32(self.target(views[key])) for _, key in self.pairs]
        negatives = self.queue.values.clone()  # the backward pass must not find newer ones
        further = self.contrasts(samples)
        outputs = [
            self.loss(query, key, negatives, *further)
            for query, key in zip(queries, keys, strict=True)
        ]
        self.remember(samples, [F.normalize(key, dim=1) for key in keys])
        return MethodOutput(
            torch.stack([output.loss for output in outputs]).mean(),
            average_terms([output.terms for output in outputs]),
            features[0].detach(),
            queries[0].detach(),
        )

    def contrasts(self, samples: Tensor) -> Sequence[Any]:
        """Return what the loss takes besides queries, keys and queue."""
        del samples
        return ()

    def remember(self, samples: Tensor, keys: Sequence[Tensor]) -> None:
        """Let the unit keys (batch, width) of a step into the queue."""
        del samples
        for key in keys:
            self.queue.push(key)

    def after_step(self, progress: float) -> None:
        """Move the key network toward the query network."""
        del progress
        online = nn.Sequential(self.backbone, self.projector)
        update_momentum(self.target, online, self.momentum)
