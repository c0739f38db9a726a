"""VICReg: Variance-Invariance-Covariance Regularization (https://arxiv.org/abs/2105.04906).

The loss pulls the embeddings of two views of an image together (invariance), keeps the standard
deviation of every component over the batch at one or more (variance, a hinge that prevents
collapse), and decorrelates different components (covariance, which prevents redundancy).

| symbol | here |
|---|---|
| Z, Z' | `first`, `second`: embeddings of the two views, `(batch, width)` |
| s(Z, Z'), Eq. 5 | `invariance` |
| v(Z), Eqs. 1 and 2 | `variance` of one view; γ = 1, ε = `EPSILON` |
| c(Z), Eqs. 3 and 4 | `covariance` of one view |
| λ, μ, ν, Eq. 6 | `invariance_weight`, `variance_weight`, `covariance_weight` |

Where the authors' code departs from the paper, this follows the code: the variance terms of the two
views are averaged (Eq. 6 adds them), and s is also divided by the width. All statistics are those
of the global batch, as in the authors' code.
"""

import torch
from torch import Tensor

from imsvd.losses.base import (
    Loss,
    LossOutput,
    centered,
    checked_pair,
    global_mean,
    global_size,
    mean_squared_difference,
    moment_energy,
)

EPSILON = 1e-4
"""ε of Eq. 2: keeps the square root differentiable at collapse."""


def invariance(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared difference of two views (Eq. 5, also averaged over the width), a scalar."""
    return mean_squared_difference(first, second)


def variance(deviations: Tensor) -> Tensor:
    """Mean over components of max(0, 1 − standard deviation) (Eq. 1).

    Args:
        deviations: `(batch, width)`, centered.
    """
    deviation = (_component_variances(deviations) + EPSILON).sqrt()
    return torch.relu(1 - deviation).mean()


def covariance(deviations: Tensor) -> Tensor:
    """Sum of the squared off-diagonal covariances over the width (Eq. 4).

    Args:
        deviations: `(batch, width)`, centered.
    """
    size = global_size(deviations)
    everything = moment_energy(deviations, deviations) * (size / (size - 1)) ** 2
    diagonal = _component_variances(deviations).square().sum()
    return (everything - diagonal) / deviations.shape[1]


def _component_variances(deviations: Tensor) -> Tensor:
    """Unbiased variance of every component: `(width,)`."""
    size = global_size(deviations)
    return global_mean(deviations.square()) * (size / (size - 1))


class VICRegLoss(Loss):
    """The loss of two views (Eq. 6) over the global batch.

    Args:
        invariance_weight: λ.
        variance_weight: μ.
        covariance_weight: ν.
    """

    def __init__(
        self,
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.weights = {
            "invariance": invariance_weight,
            "variance": variance_weight,
            "covariance": covariance_weight,
        }

    def forward(self, first: Tensor, second: Tensor) -> LossOutput:
        """Loss of two views' embeddings, `(batch, width)` each."""
        with torch.autocast(first.device.type, enabled=False):
            first, second = checked_pair("VICRegLoss", first, second, least=2)
            views = centered(first), centered(second)
            terms = {
                "invariance": invariance(first, second),
                "variance": (variance(views[0]) + variance(views[1])) / 2,
                "covariance": covariance(views[0]) + covariance(views[1]),
            }
            total = torch.stack([self.weights[name] * term for name, term in terms.items()]).sum()
        return LossOutput(total, {name: term.detach() for name, term in terms.items()})
