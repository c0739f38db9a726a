"""Directions for tests of the losses that look along random lines."""

import torch
import torch.nn.functional as F
from torch import Tensor


def directions(width: int, count: int, seed: int = 0) -> Tensor:
    """Unit vectors `(width, count)`."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(width, count, generator=generator, dtype=torch.float64)
    return F.normalize(drawn, dim=0)
