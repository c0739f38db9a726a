"""The W-MSE loss, literally: one sub-batch, one Cholesky factor, one sample at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor


def cholesky(matrix: Tensor) -> list[list[Tensor]]:
    """Lower factor, entry by entry."""
    size = len(matrix)
    factor = [[matrix.new_zeros(()) for _ in range(size)] for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest = rest - factor[i][k] * factor[j][k]
            factor[i][j] = rest**0.5 if i == j else rest / factor[j][j]
    return factor


def whiten(part: Tensor, shrinkage: float) -> Tensor:
    """Solve L z = v − μ for every sample of one sub-batch."""
    size, width = part.shape
    mean = part.sum(0) / size
    covariance = part.new_zeros(width, width)
    for sample in part:
        covariance = covariance + torch.outer(sample - mean, sample - mean) / (size - 1)
    identity = torch.eye(width, dtype=part.dtype)
    factor = cholesky((1 - shrinkage) * covariance + shrinkage * identity)
    rows = []
    for sample in part:
        solution: list[Tensor] = []
        for i in range(width):
            rest = sample[i] - mean[i]
            for k in range(i):
                rest = rest - factor[i][k] * solution[k]
            solution.append(rest / factor[i][i])
        rows.append(torch.stack(solution))
    return torch.stack(rows)


def loss(views: Sequence[Tensor], parts: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Mean over pairs of views and samples of 2 − 2 cos; `parts` are the sub-batches."""
    total, count = views[0].new_zeros(()), 0
    for part in parts:
        whitened = [whiten(view[part], shrinkage) for view in views]
        for first in range(len(views)):
            for second in range(first + 1, len(views)):
                for a, b in zip(whitened[first], whitened[second], strict=True):
                    total = total + 2 - 2 * (a @ b) / ((a @ a) * (b @ b)) ** 0.5
                    count += 1
    return total / count
