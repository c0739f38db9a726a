"""The CorInfoMax loss, literally: loops over samples, determinants by elimination."""

import torch
from torch import Tensor


def determinant(matrix: Tensor) -> Tensor:
    """Product of the pivots of Gaussian elimination, without exchanges: for definite matrices."""
    rows = [list(row) for row in matrix]
    result = matrix.new_ones(())
    for k in range(len(rows)):
        result = result * rows[k][k]
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return result


class Memory:
    """Running mean and covariance of one view."""

    def __init__(self, width: int) -> None:
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.covariance = torch.eye(width, dtype=torch.float64)

    def log_determinant(self, view: Tensor, forgetting: float, epsilon: float) -> Tensor:
        """Update with a batch and return log det(R + εI)."""
        batch, width = view.shape
        total = torch.zeros(width, dtype=torch.float64)
        for sample in view:
            total = total + sample
        mean = forgetting * self.mean + (1 - forgetting) * total / batch
        scatter = torch.zeros(width, width, dtype=torch.float64)
        for sample in view:
            scatter = scatter + torch.outer(sample - mean, sample - mean)
        covariance = forgetting * self.covariance + (1 - forgetting) * scatter / batch
        self.mean, self.covariance = mean.detach(), covariance.detach()
        return determinant(covariance + epsilon * torch.eye(width, dtype=torch.float64)).log()


def loss(
    first: Tensor,
    second: Tensor,
    memories: tuple[Memory, Memory],
    *,
    invariance_weight: float,
    forgetting: float,
    epsilon: float = 1e-8,
) -> Tensor:
    batch, width = first.shape
    attraction = torch.zeros((), dtype=torch.float64)
    for i in range(batch):
        for j in range(width):
            attraction = attraction + (first[i, j] - second[i, j]) ** 2
    volume = memories[0].log_determinant(first, forgetting, epsilon)
    volume = volume + memories[1].log_determinant(second, forgetting, epsilon)
    return invariance_weight * attraction / (batch * width) - volume / width
