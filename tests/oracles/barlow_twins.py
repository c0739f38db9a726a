"""The Barlow Twins loss, literally: loops over samples and components."""

from torch import Tensor


def standardized(view: Tensor, component: int) -> list[Tensor]:
    """One component with mean 0 and variance 1 over the batch, as a BatchNorm makes it."""
    values = list(view[:, component])
    mean = sum(values, view.new_zeros(())) / len(values)
    variance = sum(((value - mean) ** 2 for value in values), view.new_zeros(())) / len(values)
    return [(value - mean) / (variance + 1e-5) ** 0.5 for value in values]


def correlation(first: Tensor, second: Tensor, i: int, j: int) -> Tensor:
    """C_ij, Eq. 2."""
    pairs = zip(standardized(first, i), standardized(second, j), strict=True)
    return sum((a * b for a, b in pairs), first.new_zeros(())) / len(first)


def loss(first: Tensor, second: Tensor, redundancy_weight: float = 0.0051) -> Tensor:
    """Eq. 1."""
    width = first.shape[1]
    total = first.new_zeros(())
    for i in range(width):
        for j in range(width):
            cell = correlation(first, second, i, j)
            total = total + ((1 - cell) ** 2 if i == j else redundancy_weight * cell**2)
    return total
