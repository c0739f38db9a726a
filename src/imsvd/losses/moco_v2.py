"""MoCo v2: improved baselines with momentum contrastive learning (https://arxiv.org/abs/2003.04297).

A query, the embedding of one view, must find its key, the embedding of the other view by a slowly
moving copy of the network, among the keys of earlier batches. The loss (InfoNCE, Eq. 1 of
MoCo, https://arxiv.org/abs/1911.05722) is the cross-entropy of that choice.

| symbol | here |
|---|---|
| q, k₊ | `query`, `key`, `(batch, width)`; the key is held constant |
| k_i | `negatives`, `(length, width)` unit vectors, held constant |
| τ | `temperature` |
| q·k₊ / τ | minus `attraction`, its mean |
| log Σ_i exp(q·k_i / τ), over k₊ and all negatives | `repulsion`, its mean |

All ranks have the same negatives, so the loss is a mean over samples.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd.losses.base import Loss, LossOutput, checked_pair, sum_of_means
from imsvd.losses.simclr import contrast_bounds


class MoCoV2Loss(Loss):
    """InfoNCE of queries against one key and many negatives each, a mean over the global batch.

    Only the query gets a gradient.

    Args:
        temperature: τ, divisor of the cosines.
    """

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, query: Tensor, key: Tensor, negatives: Tensor) -> LossOutput:
        """Loss of `(batch, width)` queries and keys, and `(length, width)` unit vectors."""
        query, key = checked_pair("MoCoV2Loss", query, key.detach())
        with torch.autocast(query.device.type, enabled=False):
            query, key = F.normalize(query, dim=1), F.normalize(key, dim=1)
            positive = (query * key).sum(dim=1, keepdim=True)
            negative = query @ negatives.detach().to(query.dtype).T
            logits = torch.cat([positive, negative], dim=1) / self.temperature
            attraction, repulsion = -logits[:, 0].mean(), logits.logsumexp(dim=1).mean()
            return sum_of_means(attraction=attraction, repulsion=repulsion)

    def bounds(self, num_negatives: int) -> dict[str, dict[str, float]]:
        """Terms when views agree and images are as far apart as possible, or all equal."""
        return contrast_bounds(self.temperature, num_negatives, num_negatives + 1)
