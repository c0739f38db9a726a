"""SimSiam's loss, literally: Eqs. 1 and 3, sample by sample."""

import torch
from torch import Tensor


def loss(prediction: Tensor, target: Tensor) -> Tensor:
    total = torch.zeros((), dtype=prediction.dtype)
    for p, z in zip(prediction, target.detach(), strict=True):
        norms = (p * p).sum().sqrt() * (z * z).sum().sqrt()
        total = total - (p * z).sum() / norms
    return total / len(prediction)
