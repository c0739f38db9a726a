"""SimCLR: a simple framework for contrastive learning (https://arxiv.org/abs/2002.05709).

Each of the 2N embeddings of a batch must find the other view of its image among all 2N - 1 others.
The loss (NT-Xent) is the cross-entropy of that choice, with cosines as logits.

| symbol | here |
|---|---|
| z_i, z_j | `first`, `second`: the two views' embeddings, `(batch, width)` |
| τ | `temperature` |
| sim(z_i, z_j) / τ of a pair | minus `attraction`, its mean |
| log Σ_{k≠i} exp(sim(z_i, z_k) / τ) | `repulsion`, its mean |
| ℓ, Eq. 1 | `attraction + repulsion` |

The batch is that of all ranks: a rank compares its own 2n embeddings with all 2N and holds only
these rows of the similarity matrix.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd import distributed
from imsvd.losses.base import Loss, LossOutput, checked_pair, sum_of_means


def repulsion(own: Tensor, every: Tensor, position: Tensor, temperature: float) -> Tensor:
    """Mean over rows of the log-sum-exp of all similarities except that with itself.

    Args:
        own: `(rows, width)` unit vectors.
        every: `(columns, width)` unit vectors, those of `own` included.
        position: `(rows,)` column of each row's own vector.
        temperature: τ.
    """
    logits = own @ every.T / temperature
    return logits.scatter(1, position[:, None], -math.inf).logsumexp(dim=1).mean()


def contrast_bounds(
    temperature: float, num_negatives: int, num_directions: int
) -> dict[str, dict[str, float]]:
    """Terms of a contrastive loss whose positives agree, with the negatives far away or all equal.

    Args:
        temperature: τ.
        num_negatives: negatives of each embedding.
        num_directions: number of different images, which can be at most as far apart as the corners
            of a simplex.
    """
    near = 1 / temperature
    far = -near / max(1, num_directions - 1)
    ideal = near + math.log1p(num_negatives * math.exp(far - near))
    collapsed = near + math.log1p(num_negatives)
    return {
        name: {"attraction": -near, "repulsion": value, "total": value - near}
        for name, value in (("ideal", ideal), ("collapsed", collapsed))
    }


class SimCLRLoss(Loss):
    """NT-Xent of two views (Eq. 1) over the global batch.

    Beyond its inputs it holds the gathered embeddings and a few times
    `(2 * batch, 2 * global batch)` similarities.

    Args:
        temperature: τ, divisor of the cosines.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, first: Tensor, second: Tensor) -> LossOutput:
        """Loss of two views' embeddings, `(batch, width)` each."""
        with torch.autocast(first.device.type, enabled=False):
            z1, z2 = (
                F.normalize(view, dim=1) for view in checked_pair("SimCLRLoss", first, second)
            )
            # Ranks lie one after another, each with its first views and then its second.
            own = torch.cat([z1, z2])
            every = distributed.all_gather_with_gradient(own)
            position = len(own) * distributed.rank() + torch.arange(len(own), device=own.device)
            return sum_of_means(
                attraction=-(z1 * z2).sum(dim=1).mean() / self.temperature,
                repulsion=repulsion(own, every, position, self.temperature),
            )

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Terms of a global batch when views agree and images are as far apart as possible, or all equal."""
        return contrast_bounds(self.temperature, 2 * batch_size - 2, batch_size)
