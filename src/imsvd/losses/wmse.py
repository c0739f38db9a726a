"""W-MSE: Whitening for Self-Supervised Representation Learning (https://arxiv.org/abs/2007.06346).

Embeddings are whitened over random sub-batches, which scatters them on a sphere whatever the network
does, and views of the same image are then pulled together. Whitening alone prevents collapse; new
sub-batches in every step keep the network from relying on one particular whitening.

| symbol | here |
|---|---|
| v | an embedding, `(batch, width)` per view |
| W_V (v − μ_V) | `whiten`; W_V is the inverse of the Cholesky factor of the covariance |
| 2 − 2 cos(z_i, z_j) | `loss`, the mean over images and pairs of views |
| slices of the batch (Sec. 3) | sub-batches of `whitening_size`, drawn anew in every call |
| repetitions (Sec. 3) | `iterations`, over which the loss is averaged |

As in the authors' code, the covariance is divided by size − 1, gradients flow through the whitening
of all views, and every view is whitened by itself, in the same sub-batches as the others. Their
`w_eps` is `shrinkage` here. Sub-batches are drawn from the global batch.
"""

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.information import at_least_float32
from imsvd.losses.base import Loss, LossOutput


def whiten(values: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Transform each sub-batch to mean 0 and unit covariance by its Cholesky factor.

    Args:
        values: `(sub-batches, size, width)`.
        shrinkage: share of the identity that is mixed into the covariances.

    Returns:
        A tensor of the same shape.
    """
    deviations = values - values.mean(1, keepdim=True)
    covariances = deviations.mT @ deviations / (values.shape[1] - 1)
    identity = torch.eye(values.shape[2], dtype=values.dtype, device=values.device)
    factors, failures = torch.linalg.cholesky_ex(
        (1 - shrinkage) * covariances + shrinkage * identity
    )
    if failures.any() and bool(values.isfinite().all()):  # training itself reports NaN
        raise InputError(
            f"the covariance of {values.shape[1]} embeddings is singular and cannot be whitened, because "
            "the embedding has collapsed; raise method.shrinkage or lower optimizer.lr."
        )
    whitened: Tensor = torch.linalg.solve_triangular(factors, deviations.mT, upper=False).mT
    return whitened


class WMSELoss(Loss):
    """Mean squared distance of whitened, normalized views of the global batch, two or more.

    The number of calls in training mode, a buffer, seeds the permutations, so that all ranks and a
    resumed run draw the same.

    Args:
        whitening_size: samples per sub-batch; must divide the global batch.
        iterations: number of divisions into sub-batches that are averaged.
        shrinkage: share of the identity in the covariances.
    """

    calls: Tensor

    def __init__(
        self, whitening_size: int = 256, iterations: int = 4, shrinkage: float = 0.0
    ) -> None:
        super().__init__()
        self.whitening_size = whitening_size
        self.iterations = iterations
        self.shrinkage = shrinkage
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, *views: Tensor) -> LossOutput:
        """Loss of all pairs of views' embeddings, `(batch, width)` each."""
        self._check(views)
        with torch.autocast(views[0].device.type, enabled=False):
            parts = self.sub_batches(len(views[0]) * distributed.world_size())
            parts = parts.to(views[0].device)
            whitened = [self._directions(view, parts) for view in views]
            pairs = itertools.combinations(whitened, 2)
            loss = torch.stack([2 - 2 * (a * b).sum(-1).mean() for a, b in pairs]).mean()
        if self.training:
            self.calls += 1
        return LossOutput(loss, {"invariance": loss.detach()})

    def sub_batches(self, size: int) -> Tensor:
        """Draw the samples that the next call whitens together, `(sub-batches, whitening_size)`."""
        generator = torch.Generator().manual_seed(int(self.calls))
        orders = [torch.randperm(size, generator=generator) for _ in range(self.iterations)]
        return torch.cat(orders).view(-1, self.whitening_size)

    def _directions(self, view: Tensor, parts: Tensor) -> Tensor:
        """Whitened embeddings of unit length, `(sub-batches, whitening_size, width)`."""
        everyone = distributed.all_gather_with_gradient(at_least_float32(view))
        return F.normalize(whiten(everyone[parts], self.shrinkage), dim=-1)

    def _check(self, views: Sequence[Tensor]) -> None:
        shapes = {tuple(view.shape) for view in views}
        if len(views) < 2 or len(shapes) > 1 or views[0].ndim != 2:
            raise InputError(
                f"WMSELoss needs two or more equal (batch, width) embeddings, got {sorted(shapes)}."
            )
        batch = len(views[0]) * distributed.world_size()
        if batch == 0 or batch % self.whitening_size:
            raise InputError(
                f"method.whitening_size={self.whitening_size} does not divide the batch of {batch}; "
                "choose training.batch_size as a multiple of it."
            )
