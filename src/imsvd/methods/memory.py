"""What methods carry from step to step: momentum copies, queues of embeddings, memory banks.

All of it is parameters without gradient or buffers, so that checkpoints hold it and neither the
optimizer nor DistributedDataParallel touches it. Queues and banks are equal on all ranks, because
every rank applies the updates of all.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd import distributed
from imsvd.errors import InputError


def momentum_copy(*modules: nn.Module) -> nn.Sequential:
    """Copy `modules`, weights included, into one frozen network that applies them in turn."""
    return nn.Sequential(*(copy.deepcopy(module) for module in modules)).requires_grad_(False)


@torch.no_grad()
def update_momentum(follower: nn.Module, online: nn.Module, momentum: float) -> None:
    """Move a copy toward its original: θ' ← m θ' + (1 − m) θ.

    Buffers (running statistics of BatchNorm, counters) are not weights: they are copied as they are.

    Args:
        follower: the result of `momentum_copy`.
        online: the original; `nn.Sequential(backbone, projector)` if several modules were copied.
        momentum: m, the share of its own value that the copy keeps.
    """
    torch._foreach_lerp_(list(follower.parameters()), list(online.parameters()), 1 - momentum)
    for buffer, current in zip(follower.buffers(), online.buffers(), strict=True):
        buffer.copy_(current)


def cosine_momentum(base: float, progress: float) -> float:
    """Momentum that rises from `base` to 1 along a cosine while `progress` runs from 0 to 1."""
    return 1 - (1 - base) * (math.cos(math.pi * progress) + 1) / 2


class EmbeddingQueue(nn.Module):
    """A ring of the last `length` embeddings; random directions until it is full.

    Attributes:
        values: `(length, width)` unit vectors; the oldest is overwritten next.
        pushed: number of embeddings pushed so far.
    """

    values: Tensor
    pushed: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("values", F.normalize(torch.randn(length, width), dim=1))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, embeddings: Tensor) -> None:
        """Replace the oldest by this step's `(batch, width)` embeddings of all ranks, in rank order."""
        newest = distributed.all_gather(embeddings)
        length = len(self.values)
        if len(newest) > length:
            raise InputError(
                f"method.queue_length={length} is shorter than the {len(newest)} images of a step; "
                "raise it, or lower training.batch_size."
            )
        # Computed on the device, so that no step waits for the counter.
        places = (self.pushed + torch.arange(len(newest), device=newest.device)) % length
        self.values[places] = newest.to(self.values.dtype)
        self.pushed += len(newest)

    def is_full(self) -> bool:
        """Whether all random directions have been overwritten."""
        return int(self.pushed) >= len(self.values)


class MemoryBank(nn.Module):
    """One unit vector per training image that follows its embedding, `(num_samples, width)`.

    The vectors start as random directions.

    Args:
        num_samples: number of training images.
        width: width of the embedding.
        momentum: share of the old vector that an update keeps; 0 replaces it.
    """

    entries: Tensor

    def __init__(self, num_samples: int, width: int, momentum: float) -> None:
        super().__init__()
        if num_samples < 2:
            raise InputError(
                f"num_samples={num_samples} is too few for a memory bank; "
                "pass the number of training images, at least 2."
            )
        self.momentum = momentum
        self.register_buffer("entries", F.normalize(torch.randn(num_samples, width), dim=1))

    @torch.no_grad()
    def update(self, samples: Tensor, embeddings: Tensor) -> None:
        """Move the vectors of the images that this step has embedded on any rank.

        Args:
            samples: `(batch,)` positions, each at most once in the global batch.
            embeddings: `(batch, width)`, of any length.
        """
        directions = F.normalize(embeddings.to(self.entries.dtype), dim=1)
        samples, directions = distributed.all_gather(samples), distributed.all_gather(directions)
        old = self.entries[samples]
        self.entries[samples] = F.normalize(
            self.momentum * old + (1 - self.momentum) * directions, dim=1
        )

    def extra_repr(self) -> str:
        """Sizes shown by `print(bank)`."""
        num_samples, width = self.entries.shape
        return f"num_samples={num_samples}, width={width}, momentum={self.momentum:g}"
