"""NT-Xent, literally: Eq. 1 of the paper for one row after another."""

import torch
from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    rows = [*first, *second]
    batch = len(first)
    total = torch.zeros((), dtype=first.dtype)
    for i, row in enumerate(rows):
        others = torch.zeros((), dtype=first.dtype)
        for k, other in enumerate(rows):
            if k != i:
                others = others + (cosine(row, other) / temperature).exp()
        partner = rows[(i + batch) % (2 * batch)]
        total = total - ((cosine(row, partner) / temperature).exp() / others).log()
    return total / (2 * batch)
