"""Networks and views for tests of methods."""

import torch
from torch import Tensor, nn

SAMPLES = torch.arange(8)
"""Positions of the images of `views` in the data."""


class NormFree(nn.Sequential):
    """A backbone in which no sample sees another, so that only the method joins them."""

    num_features = 6

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Flatten(), nn.Linear(12, 6), nn.Tanh())


def views(count: int = 2, batch: int = 8, seed: int = 1) -> list[Tensor]:
    """Small images of related content, in float64."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(batch, 3, 2, 2, generator=generator)
    noises = [torch.randn(batch, 3, 2, 2, generator=generator) for _ in range(count)]
    return [(common + 0.5 * noise).double() for noise in noises]
