"""The LeJEPA loss, literally: complex exponentials, 17 points from −5 to 5, one line at a time."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def prediction(views: Sequence[Tensor]) -> Tensor:
    """Eqs. 6 and 7 for two large views, divided by the width too, as Algorithm 2 does."""
    batch, width = views[0].shape
    total = views[0].new_zeros(())
    for n in range(batch):
        center = (views[0][n] + views[1][n]) / 2
        for view in views:
            total = total + ((center - view[n]) ** 2).sum() / width
    return total / (len(views) * batch)


def epps_pulley(samples: Tensor, points: int = 17, limit: float = 5.0) -> Tensor:
    """N ∫ |φ̂(t) − φ(t)|² w(t) dt of `(batch,)` samples by the trapezoidal rule (Algorithm 1)."""
    heights, step = [], 2 * limit / (points - 1)
    for k in range(points):
        t = -limit + k * step
        normal = math.exp(-(t**2) / 2)
        empirical = torch.exp(1j * t * samples).sum() / len(samples)
        difference = empirical - normal
        heights.append((difference * difference.conj()).real * normal)
    area = samples.new_zeros(())
    for left, right in pairwise(heights):
        area = area + step * (left + right) / 2
    return len(samples) * area


def sigreg(view: Tensor, directions: Tensor, points: int = 17, limit: float = 5.0) -> Tensor:
    """Definition 2: the mean over directions."""
    total = view.new_zeros(())
    for direction in directions.T:
        total = total + epps_pulley(view @ direction, points, limit)
    return total / directions.shape[1]


def loss(
    views: Sequence[Tensor],
    directions: Tensor,
    weight: float = 0.05,
    points: int = 17,
    limit: float = 5.0,
) -> Tensor:
    """The total loss: SIGReg of each view, averaged, and the prediction."""
    regularizer = views[0].new_zeros(())
    for view in views:
        regularizer = regularizer + sigreg(view, directions, points, limit) / len(views)
    return weight * regularizer + (1 - weight) * prediction(views)
