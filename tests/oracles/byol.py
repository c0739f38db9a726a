"""BYOL's loss, literally: the squared distance of unit vectors, sample by sample (Eq. 2)."""

import torch
from torch import Tensor


def unit(vector: Tensor) -> Tensor:
    return vector / (vector * vector).sum().sqrt()


def loss(prediction: Tensor, target: Tensor) -> Tensor:
    total = torch.zeros((), dtype=prediction.dtype)
    for p, z in zip(prediction, target.detach(), strict=True):
        difference = unit(p) - unit(z)
        total = total + (difference * difference).sum()
    return total / len(prediction)
