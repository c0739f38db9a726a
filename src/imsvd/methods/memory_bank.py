"""One remembered unit vector per training image, the same on every rank."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd import distributed
from imsvd.errors import InputError


class MemoryBank(nn.Module):
    """Unit vectors that follow the embeddings of the images, `(num_samples, width)`.

    They start at random directions. Ranks exchange what they have embedded and update alike, so
    that every rank holds the same bank and none needs to be sent whole.

    Args:
        num_samples: images in the data.
        width: width of the embedding.
        momentum: share of the old vector that an update keeps; 0 replaces it.
    """

    entries: Tensor

    def __init__(self, num_samples: int, width: int, momentum: float) -> None:
        super().__init__()
        if num_samples < 2:
            raise InputError(
                f"num_samples={num_samples} is too few for a memory bank; "
                "give the method the number of images in the data, at least 2."
            )
        self.momentum = momentum
        self.register_buffer("entries", F.normalize(torch.randn(num_samples, width), dim=1))

    @torch.no_grad()
    def update(self, samples: Tensor, embeddings: Tensor) -> None:
        """Move the vectors of this rank's images, and of those of the other ranks.

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
