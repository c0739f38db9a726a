"""Prototypical contrastive learning, literally: loops over samples, clusterings and prototypes."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tests.oracles.npid import unit


def info_nce(query: Tensor, key: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """First term of Eq. 11, averaged."""
    total = torch.zeros((), dtype=query.dtype)
    for v, positive in zip(query, key, strict=True):
        numerator = (unit(v) @ unit(positive) / temperature).exp()
        denominator = numerator
        for negative in queue:
            denominator = denominator + (unit(v) @ negative / temperature).exp()
        total = total - (numerator / denominator).log()
    return total / len(query)


def proto_nce(
    query: Tensor, centroids: Tensor, phi: Tensor, own: Tensor, negatives: Sequence[int]
) -> Tensor:
    """One clustering's part of the second term of Eq. 11, averaged."""
    total = torch.zeros((), dtype=query.dtype)
    for v, s in zip(query, own.tolist(), strict=True):
        numerator = (unit(v) @ centroids[s] / phi[s]).exp()
        denominator = numerator
        for j in negatives:
            if j != s:
                denominator = denominator + (unit(v) @ centroids[j] / phi[j]).exp()
        total = total - (numerator / denominator).log()
    return total / len(query)


def concentrations(
    points: Tensor, centroids: Tensor, assignments: Tensor, temperature: float
) -> list[float]:
    """Eq. 12 with α = 10, then what the release does to it."""
    spread: list[float | None] = []
    for index, centroid in enumerate(centroids):
        members = points[assignments == index]
        if len(members) > 1:
            total = sum(float((member - centroid).norm()) for member in members)
            spread.append(total / (len(members) * math.log(len(members) + 10)))
        else:
            spread.append(None)
    largest = max(value for value in spread if value is not None)
    values = np.array([largest if value is None else value for value in spread])
    values = values.clip(np.percentile(values, 10), np.percentile(values, 90))
    return [float(value) for value in temperature * values / values.mean()]
