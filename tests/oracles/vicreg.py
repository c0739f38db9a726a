"""The VICReg loss, literally: loops over samples and components."""

from torch import Tensor


def invariance(first: Tensor, second: Tensor) -> Tensor:
    """Eq. 5, divided by the width too, as the authors' code does."""
    batch, width = first.shape
    total = first.new_zeros(())
    for i in range(batch):
        for j in range(width):
            total = total + (first[i, j] - second[i, j]) ** 2
    return total / (batch * width)


def cell(view: Tensor, a: int, b: int) -> Tensor:
    """Cell (a, b) of the covariance matrix, Eq. 3."""
    batch = len(view)
    mean_a, mean_b = view[:, a].sum() / batch, view[:, b].sum() / batch
    total = view.new_zeros(())
    for i in range(batch):
        total = total + (view[i, a] - mean_a) * (view[i, b] - mean_b)
    return total / (batch - 1)


def variance(view: Tensor) -> Tensor:
    """Eqs. 1 and 2 with γ = 1 and ε = 1e-4."""
    width = view.shape[1]
    total = view.new_zeros(())
    for j in range(width):
        total = total + (1 - (cell(view, j, j) + 1e-4) ** 0.5).clamp_min(0)
    return total / width


def covariance(view: Tensor) -> Tensor:
    """Eq. 4."""
    width = view.shape[1]
    total = view.new_zeros(())
    for a in range(width):
        for b in range(width):
            if a != b:
                total = total + cell(view, a, b) ** 2
    return total / width


def loss(
    first: Tensor, second: Tensor, weights: tuple[float, float, float] = (25.0, 25.0, 1.0)
) -> Tensor:
    """Eq. 6 with the variances averaged, as the authors' code does."""
    return (
        weights[0] * invariance(first, second)
        + weights[1] * (variance(first) + variance(second)) / 2
        + weights[2] * (covariance(first) + covariance(second))
    )
