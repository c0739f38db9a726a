"""The DISSL loss, literally: loops over views, samples and classes."""

from collections.abc import Sequence

import torch
from torch import Tensor


def softmax(logits: Tensor, temperature: float) -> Tensor:
    weights = (logits / temperature).exp()
    return weights / weights.sum(1, keepdim=True)


def cross_entropy(p: Tensor, q: Tensor) -> Tensor:
    total = p.new_zeros(())
    for i in range(len(p)):
        for c in range(p.shape[1]):
            total = total - p[i, c] * q[i, c].log()
    return total / len(p)


def marginal_entropy(p: Tensor) -> Tensor:
    total = p.new_zeros(())
    for c in range(p.shape[1]):
        share = p[:, c].sum() / len(p)
        total = total - share * share.log()
    return total


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).sum() / len(values)


def loss(
    teachers: Sequence[Tensor],
    students: Sequence[Tensor],
    marginal_weight: float,
    invariance_weight: float,
    temperatures: tuple[float, float],
) -> Tensor:
    """CE(t, s̃) − λ H[mean t] + β CE(t, t̃), averaged over views and pairs of views."""
    t = [softmax(logits, temperatures[0]) for logits in teachers]
    s = [softmax(logits, temperatures[1]) for logits in students]
    distillation = [
        cross_entropy(t[a], s[b]) for a in range(len(t)) for b in range(len(s)) if a != b
    ]
    invariance = [cross_entropy(t[a], t[b]) for a in range(len(t)) for b in range(len(t)) if a != b]
    marginal = mean([marginal_entropy(view) for view in t])
    return mean(distillation) - marginal_weight * marginal + invariance_weight * mean(invariance)
