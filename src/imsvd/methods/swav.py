"""SwAV as a method: backbone, projector, prototypes and swapped codes (arXiv 2006.09882).

The authors' code rescales the prototypes to unit length before every step, outside the gradient. Here
they are normalized within the loss and their length is free: the loss is the same, its gradient has
no component along a prototype, and the size of a step also depends on the length.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.swav import SwAVLoss
from imsvd.methods.base import MethodOutput, ProjectedMethod, large_views
from imsvd.methods.memory import EmbeddingQueue
from imsvd.methods.settings import (
    CLIPPED_LARS,
    SMALL_LR,
    SMALLEST_BATCH,
    MethodSettings,
    Row,
    layer_widths,
)

FROZEN_EPOCHS = 2
"""Cap on the freeze, in epochs; otherwise short runs never unfreeze the prototypes."""


class SwAVSettings(MethodSettings):
    """Settings of SwAV; the defaults are the paper's for ImageNet."""

    name: Literal["swav"] = "swav"
    projector: tuple[int, ...] = layer_widths(2048, 128)
    prototypes: int = Field(3000, ge=2, description="number of prototypes")
    temperature: float = Field(0.1, gt=0, description="τ, divisor of the cosines")
    epsilon: float = Field(
        0.05,
        ge=0.03,
        description="ε, smoothness of the codes; below 0.03 float32 underflows",
    )
    sinkhorn_iterations: int = Field(3, ge=1, description="iterations of Sinkhorn's algorithm")
    freeze_steps: int = Field(
        313, ge=0, description="number of first steps in which prototypes keep their directions"
    )
    queue_length: int = Field(
        0, ge=0, description="earlier embeddings used to balance the codes; 0 = none"
    )
    queue_start_epoch: int = Field(
        15, ge=0, description="first epoch, counted from 0, that uses the queue"
    )

    admits_local_views: ClassVar = True
    labels: ClassVar = {"divergence": "div", "code_entropy": "H(q)"}
    counted_in_epochs: ClassVar = ("queue_start_epoch",)
    smallest_sizes: ClassVar = {
        "projector": 8,
        "prototypes": 8,
        "freeze_steps": 0,
        "queue_length": 2 * SMALLEST_BATCH,
        "queue_start_epoch": 0,
    }
    # At the small scale a batch has fewer images than there are prototypes, hence the queue.
    recipes: ClassVar = {
        "small": Row(
            "chosen for short runs on a CPU: few prototypes, frozen for about an epoch, and a queue",
            method={"projector": (512, 128), "prototypes": 256, "freeze_steps": 78}
            | {"queue_length": 1024, "queue_start_epoch": 4},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "solo-learn's run of 1,000 epochs (89.2 % linear), not repeated here",
            method={"freeze_steps": 390, "queue_length": 3840, "queue_start_epoch": 50},
            optimizer={**CLIPPED_LARS, "lr": 0.6, "weight_decay": 1e-6, "final_lr_ratio": 0},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the paper's for two large views (arXiv 2006.09882)",
            optimizer={"lr": 0.3},
            training={"batch_size": 4096},
        ),
    }

    def fit_to_images(self, images: int, batch_size: int) -> Self:
        """Freeze the prototypes for no longer than `FROZEN_EPOCHS`."""
        steps = min(self.freeze_steps, FROZEN_EPOCHS * images // batch_size)
        return self.replace(freeze_steps=steps)


class SwAV(ProjectedMethod):
    """Every view predicts the assignment of the other large views to prototypes."""

    steps: Tensor
    epoch: Tensor

    def __init__(self, settings: SwAVSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        super().__init__(backbone, settings.projector, last="bias")
        width = settings.projector[-1]
        self.freeze_steps = settings.freeze_steps
        self.queue_start_epoch = settings.queue_start_epoch
        self.prototypes = nn.Parameter(F.normalize(torch.randn(settings.prototypes, width), dim=1))
        # One queue for each large view, or none.
        self.queues = nn.ModuleList(
            EmbeddingQueue(settings.queue_length, width)
            for _ in range(2 if settings.queue_length else 0)
        )
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long))
        self.loss = SwAVLoss(settings.temperature, settings.epsilon, settings.sinkhorn_iterations)
        distributed.keep_from_broadcast(self, ["queues."])

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss of all views, then push the embeddings of the large ones."""
        del samples
        features, embeddings = self.project(views)
        with torch.autocast(views[0].device.type, enabled=False):
            units = [F.normalize(at_least_float32(value), dim=1) for value in embeddings]
            prototypes = F.normalize(self._prototypes_with_gradient(), dim=1)
            output = self.loss([unit @ prototypes.T for unit in units], self._earlier(prototypes))
        for queue, unit in zip(self._queues(), units, strict=False):
            queue.push(unit)
        return MethodOutput(output.loss, output.terms, large_views(features), units[0].detach())

    def _prototypes_with_gradient(self) -> Tensor:
        """Return the prototypes, with a gradient of zero during the first `freeze_steps`.

        Zero rather than none, because every parameter must take part in every step. Weight decay
        still shrinks them, which their normalization undoes.
        """
        constant = self.prototypes.detach()
        return constant + (self.steps >= self.freeze_steps) * (self.prototypes - constant)

    def _queues(self) -> list[EmbeddingQueue]:
        return [queue for queue in self.queues if isinstance(queue, EmbeddingQueue)]

    @torch.no_grad()
    def _earlier(self, prototypes: Tensor) -> list[Tensor]:
        """Return the scores of this rank's share of the queues, or nothing before they are in use."""
        queues = self._queues()
        ready = queues and int(self.epoch) >= self.queue_start_epoch and queues[0].is_full()
        if not ready:
            return []
        own = distributed.own_slice(len(queues[0].values))
        return [queue.values[own] @ prototypes.T for queue in queues]

    def begin_epoch(self, epoch: int) -> None:
        """Store the epoch, which decides whether the queue is used."""
        self.epoch.fill_(epoch)

    def after_step(self, progress: float) -> None:
        """Count the step."""
        del progress
        self.steps += 1

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the values of one-hot codes predicted exactly, and of even codes."""
        del batch_size
        even = math.log(len(self.prototypes))
        return {
            "ideal": {"divergence": 0.0, "code_entropy": 0.0, "total": 0.0},
            "even": {"divergence": 0.0, "code_entropy": even, "total": even},
        }
