"""LeJEPA: provable self-supervised learning without the heuristics (https://arxiv.org/abs/2511.08544).

All views of an image get the embedding that its large views have on average, and the embeddings of
a batch are a sample of the standard normal distribution (SIGReg). By the theorem of Cramér and Wold
they are if every projection onto a line is; the lines are drawn anew at every step, and the test of
Epps and Pulley compares characteristic functions on each.

| symbol | here |
|---|---|
| z_{n,v} | `views[v][n]`, `(batch, width)` each; the first two are the large ones (V_g = 2) |
| μ_n, Eq. 7 | `views_center`: mean of the large views |
| L_pred, Eqs. 6 and 7 | `prediction` |
| 𝔸 | `directions`, `(width, slices)` unit vectors, equal on all ranks and for all views |
| EP = N ∫ |φ̂(t) − φ(t)|² w(t) dt | `epps_pulley`; φ and w are exp(−t²/2), as in Algorithm 1 |
| SIGReg, Definition 2 | `sigreg`: mean of EP over directions, and then over views |
| λ | `regularization_weight`; the prediction has 1 − λ |

The paper's integral is a trapezoidal sum over 17 points of [−5, 5]. Its terms at t and −t are equal, so
that the nine points from 0 on, counted twice but for 0, give the same sum. As in Algorithm 2, the
squared distance of the prediction is also divided by the width. Eq. 5, the distance to each large
view, is not Eq. 6, the distance to their mean: it also has their variance. Algorithm 2 and this are
Eq. 6. N is the global batch, whose characteristic function all ranks share.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from imsvd import distributed
from imsvd.losses.base import Loss, LossOutput, checked_views, global_size


def views_center(views: Sequence[Tensor]) -> Tensor:
    """Mean of the two large views, `(batch, width)` (Eq. 7)."""
    return (views[0] + views[1]) / 2


def prediction(views: Sequence[Tensor]) -> Tensor:
    """Mean squared difference of every view from the center of the large ones (Eq. 7), a scalar."""
    center = views_center(views)
    distances = torch.stack([(view - center).square().mean() for view in views])
    return distributed.mean_over_ranks_with_gradient(distances.mean())


class Quadrature(NamedTuple):
    """The trapezoidal sum over an odd number of points from −limit to limit, folded at 0.

    Attributes:
        frequencies: t, the points from 0 on.
        normal: φ(t), the characteristic function of the normal distribution.
        weights: w(t) times the length that stands for t and −t.
    """

    frequencies: Tensor
    normal: Tensor
    weights: Tensor

    @classmethod
    def over(cls, points: int, limit: float, like: Tensor) -> Self:
        """Return the sum over `points` points, in the type and on the device of `like`."""
        step = 2 * limit / (points - 1)
        frequencies = step * torch.arange(points // 2 + 1, dtype=like.dtype, device=like.device)
        normal = (-frequencies.square() / 2).exp()
        weights = 2 * step * normal
        weights[0] /= 2  # the only point without a twin
        weights[-1] /= 2  # the end of the trapezoids
        return cls(frequencies, normal, weights)


def epps_pulley(projections: Tensor, quadrature: Quadrature) -> Tensor:
    """Distance of each column's characteristic function from the normal one, `(slices,)`.

    Args:
        projections: `(batch, slices)`, this rank's samples on every line.
        quadrature: the integral over frequencies.
    """
    angles = projections * quadrature.frequencies[:, None, None]
    means = torch.stack([angles.cos().mean(1), angles.sin().mean(1)])
    real, imaginary = distributed.mean_over_ranks_with_gradient(means)
    errors = (real - quadrature.normal[:, None]).square() + imaginary.square()
    return torch.mv(errors.T, quadrature.weights) * global_size(projections)


class LeJEPALoss(Loss):
    """The loss of all views of a batch, over the global batch.

    It holds a few times `(points / 2, batch, slices)` numbers per view.

    Args:
        regularization_weight: λ, weight of SIGReg.
        points: number of points of the integral, odd.
        limit: largest frequency of the integral.
    """

    def __init__(
        self, regularization_weight: float = 0.05, points: int = 17, limit: float = 5.0
    ) -> None:
        super().__init__()
        self.regularization_weight, self.points, self.limit = regularization_weight, points, limit

    def forward(self, views: Sequence[Tensor], directions: Tensor) -> LossOutput:
        """Loss of `(batch, width)` embeddings, large views first, along `(width, slices)` unit vectors."""
        with torch.autocast(views[0].device.type, enabled=False):
            views = checked_views("LeJEPALoss", views)
            directions = directions.to(views[0].dtype)
            quadrature = Quadrature.over(self.points, self.limit, views[0])
            statistics = [epps_pulley(view @ directions, quadrature).mean() for view in views]
            terms = {"prediction": prediction(views), "sigreg": torch.stack(statistics).mean()}
            weight = self.regularization_weight
            total = (1 - weight) * terms["prediction"] + weight * terms["sigreg"]
        return LossOutput(total, {name: term.detach() for name, term in terms.items()})

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Terms of equal views of normal samples, as expected in a batch of any size, and of a constant 0."""
        like = torch.zeros((), dtype=torch.float64)
        _, normal, weights = Quadrature.over(self.points, self.limit, like)
        expected = float(weights @ (1 - normal.square()))  # |φ̂|² is φ² + (1 − φ²) / N on average
        collapsed = batch_size * float(weights @ (1 - normal).square())
        return {
            name: {"prediction": 0.0, "sigreg": value, "total": self.regularization_weight * value}
            for name, value in (("normal", expected), ("collapsed", collapsed))
        }
