"""MoCo v2 as a method: queries, momentum keys and a queue of earlier keys (arXiv 2003.04297).

`KeyQueueMethod` is the part that PCL shares.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.moco_v2 import MoCoV2Loss
from imsvd.methods.base import Method, MethodOutput, mean_output
from imsvd.methods.memory import EmbeddingQueue, momentum_copy, update_momentum
from imsvd.methods.settings import CONTRASTIVE_LR, SMALLEST_BATCH, MethodSettings, Row, layer_widths
from imsvd.networks import feature_width, projector

IMAGENET_SGD = {"name": "sgd", "lr": 0.03, "weight_decay": 1e-4, "decay_all": True} | {
    "warmup_epochs": 0,
    "final_lr_ratio": 0,
}
"""MoCo's optimizer: SGD without warm-up, weight decay of everything."""
CIFAR_SGD = {"lr": 0.3, "weight_decay": 1e-4, "decay_all": False, "final_lr_ratio": 0}


class KeyQueueSettings(MethodSettings):
    """Settings of queries, keys and queue; a method adds its own."""

    projector: tuple[int, ...] = layer_widths(
        2048,
        128,
        description="widths of the projector's layers, without BatchNorm; the last is the embedding",
    )
    momentum: float = Field(0.999, ge=0, le=1, description="momentum of the key network")
    queue_length: int = Field(
        65536, ge=1, description="number of earlier keys as negatives; at least one step's keys"
    )
    symmetric: bool = Field(
        False, description="whether each view is query and key in turn, for twice the passes"
    )

    @property
    def views_with_gradient(self) -> float:
        """Half, unless both views are queries."""
        return 1.0 if self.symmetric else 0.5


class KeyQueueMethod(Method):
    """The first view must find its key, made of the second, among the keys of earlier batches.

    A subclass sets `loss`, which maps queries and keys, `(batch, width)` each, the queue and the
    result of `contrasts` to a `LossOutput`.
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
        """Compute the loss against the queue as it was, then push this step's keys."""
        features = [self.backbone(views[query]) for query, _ in self.pairs]
        queries = [self.projector(feature) for feature in features]
        target_backbone, target_projector = self.target
        with torch.no_grad():
            key_features = [target_backbone(views[key]) for _, key in self.pairs]
            keys = [at_least_float32(target_projector(feature)) for feature in key_features]
        negatives = self.queue.values.clone()  # the backward pass needs them unchanged
        further = self.contrasts(samples)
        outputs = [
            self.loss(query, key, negatives, *further)
            for query, key in zip(queries, keys, strict=True)
        ]
        self.remember(samples, [F.normalize(key, dim=1) for key in keys])
        return mean_output(outputs, [*features, *key_features], queries)

    def contrasts(self, samples: Tensor) -> Sequence[Any]:
        """Return further arguments of the loss, after queries, keys and queue."""
        del samples
        return ()

    def remember(self, samples: Tensor, keys: Sequence[Tensor]) -> None:
        """Push the unit keys of a step, `(batch, width)` each, into the queue."""
        del samples
        for key in keys:
            self.queue.push(key)

    def after_step(self, progress: float) -> None:
        """Move the key network toward the query network."""
        del progress
        online = nn.Sequential(self.backbone, self.projector)
        update_momentum(self.target, online, self.momentum)


class MoCoV2Settings(KeyQueueSettings):
    """Settings of MoCo v2; the defaults, shared ones included, are the paper's for ImageNet."""

    name: Literal["moco_v2"] = "moco_v2"
    temperature: float = Field(0.2, gt=0, description="τ, divisor of the cosines")

    labels: ClassVar = {"attraction": "attr", "repulsion": "repul"}
    smallest_sizes: ClassVar = {"projector": 8, "queue_length": 2 * SMALLEST_BATCH}
    recipes: ClassVar = {
        "small": Row(
            "chosen for short runs on a CPU: a quicker key network, a queue of less than an epoch",
            method={"projector": (512, 128), "momentum": 0.99, "queue_length": 4096}
            | {"symmetric": True},
            optimizer=CONTRASTIVE_LR,
        ),
        "cifar10": Row(
            "solo-learn's symmetric run of 1,000 epochs (92.9 % linear), its momentum held at 0.99",
            method={"projector": (2048, 256), "momentum": 0.99, "queue_length": 32768}
            | {"symmetric": True},
            optimizer=CIFAR_SGD,
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the paper's (arXiv 2003.04297)",
            optimizer=IMAGENET_SGD,
            training={"batch_size": 256},
        ),
    }


class MoCoV2(KeyQueueMethod):
    """Queries against keys and queue, and nothing else.

    The authors shuffle samples between GPUs so that BatchNorm statistics cannot give the key away;
    synchronized BatchNorm, in query and key network, serves the same end here.
    """

    loss: MoCoV2Loss

    def __init__(self, settings: MoCoV2Settings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__(settings, backbone)
        del num_samples
        self.loss = MoCoV2Loss(settings.temperature)
        distributed.keep_from_broadcast(self, ["queue."])

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the ideal and the collapsed value, which depend on the queue, not on the batch."""
        del batch_size
        return self.loss.bounds(len(self.queue.values))
