"""Barlow Twins: Self-Supervised Learning via Redundancy Reduction (https://arxiv.org/abs/2103.03230).

Every component of the embedding is standardized over the batch, and the loss pulls the
cross-correlation matrix of two views to the identity: its diagonal ties the views together, its
other cells keep components from repeating each other.

| symbol | here |
|---|---|
| Z^A, Z^B | `first`, `second`: embeddings of the two views, `(batch, width)` |
| C, Eq. 2 | cross-correlation of the views; only its diagonal and its norm are needed |
| first sum of Eq. 1 | `invariance` |
| second sum of Eq. 1 | `redundancy` |
| λ | `redundancy_weight` |

As in the authors' code, components are standardized with the biased variance and an ε of 1e-5 (a
BatchNorm), which the paper does not mention. Means, variances and C are those of the global batch.
"""

import torch
from torch import Tensor

from imsvd.losses.base import (
    Loss,
    LossOutput,
    centered,
    checked_pair,
    global_mean,
    moment_energy,
    sample_mean,
)

EPSILON = 1e-5
"""Added to the variance, as BatchNorm does."""


def standardize(embedding: Tensor) -> Tensor:
    """Scale every component to mean 0 and variance 1 over the global batch, `(batch, width)`."""
    deviations = centered(embedding)
    return deviations * (sample_mean(deviations.square()) + EPSILON).rsqrt()


def correlations(first: Tensor, second: Tensor) -> Tensor:
    """Diagonal of C: `(width,)` from two standardized views."""
    return global_mean(first * second)


def invariance(diagonal: Tensor) -> Tensor:
    """Σ (1 − C_ii)² of Eq. 1 from the diagonal of C."""
    return (1 - diagonal).square().sum()


def redundancy(first: Tensor, second: Tensor, diagonal: Tensor) -> Tensor:
    """Σ C_ij² over i ≠ j of Eq. 1: all cells except the diagonal."""
    return moment_energy(first, second) - diagonal.square().sum()


class BarlowTwinsLoss(Loss):
    """The loss of two views (Eq. 1) over the global batch.

    Args:
        redundancy_weight: λ.
    """

    def __init__(self, redundancy_weight: float = 0.0051) -> None:
        super().__init__()
        self.redundancy_weight = redundancy_weight

    def forward(self, first: Tensor, second: Tensor) -> LossOutput:
        """Loss of two views' embeddings, `(batch, width)` each."""
        with torch.autocast(first.device.type, enabled=False):
            first, second = checked_pair("BarlowTwinsLoss", first, second, least=2)
            first, second = standardize(first), standardize(second)
            diagonal = correlations(first, second)
            tied, redundant = invariance(diagonal), redundancy(first, second, diagonal)
            total = tied + self.redundancy_weight * redundant
        return LossOutput(total, {"invariance": tied.detach(), "redundancy": redundant.detach()})
