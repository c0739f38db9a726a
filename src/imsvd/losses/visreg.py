"""VISReg: Variance-Invariance-Sketching Regularization (https://arxiv.org/abs/2606.02572).

As LeJEPA, it pulls all views of an image toward the mean of its large views and the embeddings of a
batch toward the standard normal distribution. Here three separate terms say what is normal: the mean
of every component is 0 (center), its standard deviation is 1 (scale), and the standardized
embeddings are normal along random lines (shape). The scale is constant within the shape, so that a
collapsed network gets a gradient of constant size from the scale alone.

| symbol | here |
|---|---|
| Z | one of `views`, `(batch, width)`; the first two are the large ones |
| L_scale, Eq. 1 | `scale`: mean of (1 − σ_j)², with the biased deviation σ_j |
| Ẑ, Eq. 2 | `standardized`: centered, over σ_j without its gradient |
| L_shape, Eq. 5 | `shape`: squared Wasserstein distance of projections from normal quantiles |
| L_center, Eq. 6 | `center`: mean of the squared means |
| L_pred, Eq. 8 | `prediction`, as in LeJEPA |
| λ | `regularization_weight` of the three terms together; the prediction has 1 − λ |

Along a line, the Wasserstein distance compares the i-th smallest of N projections with the normal
quantile of i / (N + 1). Deviations are at least `LEAST_DEVIATION`, as in the authors' code. The
regularizers are means over views.

Statistics are those of the global batch, as in the authors' training script. There, every rank sorts
all samples along lines of its own; here, the lines are divided among the ranks, so that any number of
them computes the same loss. `num_slices` is therefore the number of all ranks together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from imsvd import distributed
from imsvd.losses.base import Loss, LossOutput, centered, checked_views, global_mean
from imsvd.losses.lejepa import prediction

LEAST_DEVIATION = 1e-6
"""Smallest standard deviation; a component below it gets no gradient from the scale."""


def deviation(deviations: Tensor) -> Tensor:
    """Biased standard deviation of every component, `(width,)`, of centered `(batch, width)` values."""
    return global_mean(deviations.square()).clamp_min(LEAST_DEVIATION**2).sqrt()


def normal_quantiles(count: int, like: Tensor) -> Tensor:
    """Quantiles of the normal distribution at 1 / (count + 1), …, count / (count + 1), `(count,)`."""
    positions = torch.arange(1, count + 1, dtype=like.dtype, device=like.device) / (count + 1)
    quantiles: Tensor = torch.special.ndtri(positions)
    return quantiles


def shape(standardized: Tensor, directions: Tensor) -> Tensor:
    """Mean squared distance of sorted projections from the normal quantiles (Eq. 5), a scalar.

    Args:
        standardized: `(batch, width)`, this rank's part of the batch.
        directions: `(width, slices)` unit vectors; each rank sorts along its share of them.
    """
    everyone = distributed.all_gather_with_gradient(standardized)
    own = directions[:, distributed.own_slice(directions.shape[1])]
    ordered = (own.T @ everyone.T).sort(dim=1).values
    errors = (ordered - normal_quantiles(len(everyone), ordered)).square().sum()
    parts = errors / (len(everyone) * directions.shape[1])
    return distributed.world_size() * distributed.mean_over_ranks_with_gradient(parts)


class VISRegLoss(Loss):
    """The loss of all views of a batch, over the global batch.

    Beyond its inputs it holds the gathered embeddings and a few times `(slices, global batch)`
    projections of one view, with the slices of this rank.

    Args:
        regularization_weight: λ, weight of the three regularizers.
        scale_weight: weight of the scale among them.
        shape_weight: weight of the shape among them.
        center_weight: weight of the center among them.
    """

    def __init__(
        self,
        regularization_weight: float = 0.9,
        scale_weight: float = 1.0,
        shape_weight: float = 1.0,
        center_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.weights = {
            "prediction": 1 - regularization_weight,
            "scale": regularization_weight * scale_weight,
            "shape": regularization_weight * shape_weight,
            "center": regularization_weight * center_weight,
        }

    def forward(self, views: Sequence[Tensor], directions: Tensor) -> LossOutput:
        """Loss of `(batch, width)` embeddings, large views first, along `(width, slices)` unit vectors."""
        with torch.autocast(views[0].device.type, enabled=False):
            views = checked_views("VISRegLoss", views, least=2)
            parts = [self._regularizers(view, directions.to(view.dtype)) for view in views]
            scale, shape, center = torch.stack(parts).mean(0)
            terms = {"prediction": prediction(views), "scale": scale, "shape": shape}
            terms["center"] = center
            total = torch.stack([self.weights[name] * term for name, term in terms.items()]).sum()
        return LossOutput(total, {name: term.detach() for name, term in terms.items()})

    def _regularizers(self, view: Tensor, directions: Tensor) -> Tensor:
        """Scale, shape and center of one view, `(3,)`."""
        deviations = centered(view)
        sigma = deviation(deviations)
        scale = (1 - sigma).square().mean()
        center = global_mean(view).square().mean()
        return torch.stack([scale, shape(deviations / sigma.detach(), directions), center])

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Terms of equal views of normal embeddings, and of a network that says 0."""
        quantiles = normal_quantiles(batch_size, torch.zeros((), dtype=torch.float64))
        nothing = {"prediction": 0.0, "scale": 0.0, "shape": 0.0, "center": 0.0}
        missing = (1 - LEAST_DEVIATION) ** 2
        collapsed = {**nothing, "scale": missing, "shape": float(quantiles.square().mean())}
        total = sum(self.weights[name] * value for name, value in collapsed.items())
        return {"ideal": {**nothing, "total": 0.0}, "collapsed": {**collapsed, "total": total}}
