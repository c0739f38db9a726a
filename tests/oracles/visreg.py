"""The VISReg loss, literally: one component, one line and one sample at a time."""

from collections.abc import Sequence
from statistics import NormalDist

from torch import Tensor

from tests.oracles.lejepa import prediction


def mean(view: Tensor, j: int) -> Tensor:
    return view[:, j].sum() / len(view)


def deviation(view: Tensor, j: int) -> Tensor:
    """σ_j, biased."""
    total = view.new_zeros(())
    for i in range(len(view)):
        total = total + (view[i, j] - mean(view, j)) ** 2
    return (total / len(view)) ** 0.5


def scale(view: Tensor) -> Tensor:
    """Eq. 1."""
    width = view.shape[1]
    total = view.new_zeros(())
    for j in range(width):
        total = total + (1 - deviation(view, j)) ** 2
    return total / width


def center(view: Tensor) -> Tensor:
    """Eq. 6."""
    width = view.shape[1]
    total = view.new_zeros(())
    for j in range(width):
        total = total + mean(view, j) ** 2
    return total / width


def shape(view: Tensor, directions: Tensor) -> Tensor:
    """Eqs. 2 and 5."""
    batch, width = view.shape
    total = view.new_zeros(())
    for direction in directions.T:
        projections = []
        for i in range(batch):
            projection = view.new_zeros(())
            for j in range(width):
                standardized = (view[i, j] - mean(view, j)) / deviation(view, j).detach()
                projection = projection + direction[j] * standardized
            projections.append(projection)
        for i, projection in enumerate(sorted(projections, key=Tensor.item), 1):
            total = total + (projection - NormalDist().inv_cdf(i / (batch + 1))) ** 2
    return total / (batch * directions.shape[1])


def loss(
    views: Sequence[Tensor],
    directions: Tensor,
    weight: float = 0.9,
    parts: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> Tensor:
    """The regularizers of each view, averaged, and the prediction; `parts` are scale, shape, center."""
    regularizer = views[0].new_zeros(())
    for view in views:
        of_view = parts[0] * scale(view) + parts[1] * shape(view, directions)
        regularizer = regularizer + (of_view + parts[2] * center(view)) / len(views)
    return (1 - weight) * prediction(views) + weight * regularizer
