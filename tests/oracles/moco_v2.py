"""InfoNCE against a queue, literally: Eq. 1 of MoCo for one query after another."""

import torch
from torch import Tensor


def unit(vector: Tensor) -> Tensor:
    return vector / (vector * vector).sum().sqrt()


def loss(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    total = torch.zeros((), dtype=query.dtype)
    for q, k in zip(query, key.detach(), strict=True):
        positive = ((unit(q) * unit(k)).sum() / temperature).exp()
        denominator = positive
        for negative in negatives:
            denominator = denominator + ((unit(q) * negative).sum() / temperature).exp()
        total = total - (positive / denominator).log()
    return total / len(query)
