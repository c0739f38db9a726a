"""A ring of the newest embeddings, the same on every rank and part of every checkpoint."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd import distributed
from imsvd.errors import InputError


class EmbeddingQueue(nn.Module):
    """The last `length` embeddings that were pushed; random directions until there are as many.

    Attributes:
        values: `(length, width)` unit vectors; the place of the oldest is the next to be overwritten.
        pushed: how many embeddings have been pushed so far.
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
        """Whether nothing of the random beginning is left."""
        return int(self.pushed) >= len(self.values)
