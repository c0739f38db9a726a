"""MoCo v2 as a method: queries, momentum keys and a queue of earlier keys (arXiv 2003.04297)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from imsvd import distributed
from imsvd.losses.moco_v2 import MoCoV2Loss
from imsvd.methods.key_queue import KeyQueueMethod, KeyQueueSettings


class MoCoV2Settings(KeyQueueSettings):
    """Settings of MoCo v2; the defaults, shared ones included, are the paper's for ImageNet."""

    name: Literal["moco_v2"] = "moco_v2"
    temperature: float = Field(0.2, gt=0, description="τ, by which cosines are divided")


class MoCoV2(KeyQueueMethod):
    """The loss of queries against keys and queue, and nothing else.

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
        """Return the ideal and the collapsed value, which the queue sets rather than the batch."""
        del batch_size
        return self.loss.bounds(len(self.queue.values))
