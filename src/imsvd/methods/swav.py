"""SwAV as a method: backbone, projector, prototypes and swapped codes (arXiv 2006.09882).

The authors' code brings the prototypes back to unit length before every step, outside the gradient.
Here they are normalized within the loss and their length is free: the loss is the same, its gradient
has no part along a prototype, and the size of a step depends on the length too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.swav import SwAVLoss
from imsvd.methods.base import Method, MethodOutput, MethodSettings
from imsvd.methods.queue import EmbeddingQueue
from imsvd.networks import feature_width, projector


class SwAVSettings(MethodSettings):
    """Settings of SwAV; the defaults are the paper's for ImageNet."""

    name: Literal["swav"] = "swav"
    projector: tuple[int, ...] = Field(
        (2048, 128),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    prototypes: int = Field(3000, ge=2, description="how many prototypes views are assigned to")
    temperature: float = Field(0.1, gt=0, description="τ, by which cosines are divided")
    epsilon: float = Field(
        0.05,
        ge=0.03,
        description="ε, smoothness of the codes; float32 has no room for less than 0.03",
    )
    sinkhorn_iterations: int = Field(3, ge=1, description="iterations that make codes even")
    freeze_steps: int = Field(
        313, ge=0, description="steps at the start in which prototypes keep their directions"
    )
    queue_length: int = Field(
        0, ge=0, description="embeddings of earlier batches that help to make codes even; 0 = none"
    )
    queue_start_epoch: int = Field(
        15, ge=0, description="epoch, counted from 0, from which the queue is used"
    )

    admits_local_views: ClassVar[bool] = True


class SwAV(Method):
    """Every view predicts to which prototypes the other large views are assigned."""

    steps: Tensor
    epoch: Tensor

    def __init__(self, settings: SwAVSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        self.freeze_steps = settings.freeze_steps
        self.queue_start_epoch = settings.queue_start_epoch
        self.backbone = backbone
        widths = (feature_width(backbone), *settings.projector)
        self.projector = projector(widths, last="bias")
        self.prototypes = nn.Parameter(
            F.normalize(torch.randn(settings.prototypes, widths[-1]), dim=1)
        )
        # One queue for each large view, or none.
        self.queues = nn.ModuleList(
            EmbeddingQueue(settings.queue_length, widths[-1])
            for _ in range(2 if settings.queue_length else 0)
        )
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long))
        self.loss = SwAVLoss(settings.temperature, settings.epsilon, settings.sinkhorn_iterations)
        distributed.keep_from_broadcast(self, ["queues."])

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss; each view is its own pass, because BatchNorm must not mix them."""
        del samples
        features = [self.backbone(view) for view in views]
        embeddings = [self.projector(feature) for feature in features]
        with torch.autocast(views[0].device.type, enabled=False):
            units = [F.normalize(at_least_float32(value), dim=1) for value in embeddings]
            prototypes = F.normalize(self._prototypes_with_gradient(), dim=1)
            output = self.loss([unit @ prototypes.T for unit in units], self._earlier(prototypes))
        for queue, unit in zip(self._queues(), units, strict=False):
            queue.push(unit)
        return MethodOutput(output.loss, output.terms, features[0].detach(), units[0].detach())

    def _prototypes_with_gradient(self) -> Tensor:
        """The prototypes, with a gradient of zero during the first `freeze_steps`.

        Zero rather than none, because every parameter takes part in every step. Weight decay may
        still shrink them, which their normalization undoes.
        """
        constant = self.prototypes.detach()
        return constant + (self.steps >= self.freeze_steps) * (self.prototypes - constant)

    def _queues(self) -> list[EmbeddingQueue]:
        return [queue for queue in self.queues if isinstance(queue, EmbeddingQueue)]

    @torch.no_grad()
    def _earlier(self, prototypes: Tensor) -> list[Tensor]:
        """This rank's share of the queues compared with the prototypes, once queues are in use."""
        queues = self._queues()
        ready = queues and int(self.epoch) >= self.queue_start_epoch and queues[0].is_full()
        if not ready:
            return []
        own = distributed.own_slice(len(queues[0].values))
        return [queue.values[own] @ prototypes.T for queue in queues]

    def begin_epoch(self, epoch: int) -> None:
        """Remember the epoch, from which the use of the queue follows."""
        self.epoch.fill_(epoch)

    def after_step(self, progress: float) -> None:
        """Count the step."""
        del progress
        self.steps += 1

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the values of certain codes that are predicted exactly, and of even ones."""
        del batch_size
        even = math.log(len(self.prototypes))
        return {
            "ideal": {"divergence": 0.0, "code_entropy": 0.0, "total": 0.0},
            "even": {"divergence": 0.0, "code_entropy": even, "total": even},
        }
