"""CorInfoMax: Self-Supervised Learning with an Information Maximization Criterion
(https://arxiv.org/abs/2209.07999).

The log-determinant of an embedding's covariance measures how much of its space the embedding fills.
The loss increases it for both views (the "big-bang" factor, which prevents collapse and redundancy)
and pulls the views together (the "attraction" factor). Because one batch estimates a covariance
poorly, the estimate is a running mean over batches.

| symbol | here |
|---|---|
| z¹, z² | `first`, `second`: embeddings of the two views, `(batch, width)`, of unit length |
| μ¹, μ² | `mean`, a buffer `(2, width)`: μ ← λ μ + (1 − λ) batch mean |
| R¹, R² | `covariance`, a buffer `(2, width, width)`: R ← λ R + (1 − λ) (1/N) Σ (z − μ)(z − μ)ᵀ |
| λ | `forgetting`: the share that the past keeps |
| ε | `epsilon`, added to the diagonal |
| α | `invariance_weight` |

As in the authors' code, the mean subtracted is the running one, already updated with the batch; the
covariance is divided by N; R starts as the identity and is kept in float64; the similarity is also
averaged over the width; gradients flow only through the batch's share of μ and R. Their code
estimates R on each rank separately; here R is that of the global batch.
"""

import torch
from torch import Tensor

from imsvd.errors import InputError
from imsvd.losses.base import (
    Loss,
    LossOutput,
    checked_pair,
    global_mean,
    mean_squared_difference,
    sample_mean,
)


def log_determinant(matrix: Tensor) -> Tensor:
    """Log-determinant of a symmetric positive definite `(width, width)` matrix, a scalar.

    NaN if the matrix holds values that are not finite.
    """
    factor, failure = torch.linalg.cholesky_ex(matrix)
    if failure and bool(matrix.isfinite().all()):
        raise InputError(
            f"the covariance of {len(matrix)} dimensions is singular and has no log-determinant, because "
            "the embedding has collapsed; raise method.epsilon or lower optimizer.lr."
        )
    result: Tensor = 2 * factor.diagonal().log().sum()
    return result if not failure else result * torch.nan


class CorInfoMaxLoss(Loss):
    """The loss of two views over the global batch, with running means and covariances.

    Every call in training mode updates them. The similarity is computed in float32 or
    float64, the log-determinants always in float64.

    Args:
        width: width of the embeddings.
        invariance_weight: α.
        forgetting: λ, of means and covariances alike.
        epsilon: ε.
    """

    mean: Tensor
    covariance: Tensor

    def __init__(
        self,
        width: int,
        invariance_weight: float = 2000.0,
        forgetting: float = 0.1,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__()
        self.invariance_weight = invariance_weight
        self.forgetting = forgetting
        self.epsilon = epsilon
        identity = torch.eye(width, dtype=torch.float64)
        self.register_buffer("mean", torch.zeros(2, width, dtype=torch.float64))
        self.register_buffer("covariance", identity.repeat(2, 1, 1))

    def forward(self, first: Tensor, second: Tensor) -> LossOutput:
        """Loss of two views' embeddings, `(batch, width)` each."""
        with torch.autocast(first.device.type, enabled=False):
            first, second = checked_pair("CorInfoMaxLoss", first, second, least=2)
            similarity = mean_squared_difference(first, second)
            volume = self._log_volume(first, 0) + self._log_volume(second, 1)
            total = self.invariance_weight * similarity - volume
        terms = {"invariance": similarity.detach(), "log_volume": volume.detach()}
        return LossOutput(total, terms)

    def _log_volume(self, embedding: Tensor, view: int) -> Tensor:
        """Log-determinant of the updated R of one view over the width, a scalar in float64."""
        embedding = embedding.double()
        mean = self._updated(self.mean[view], sample_mean(embedding))
        deviations = embedding - mean
        local = deviations.T @ deviations / len(embedding)
        covariance = self._updated(self.covariance[view], global_mean(local[None]))
        if self.training:
            self.mean[view] = mean.detach()
            self.covariance[view] = covariance.detach()
        jitter = self.epsilon * torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        return log_determinant(covariance + jitter) / len(mean)

    def _updated(self, past: Tensor, present: Tensor) -> Tensor:
        return self.forgetting * past + (1 - self.forgetting) * present
