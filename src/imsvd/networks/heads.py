"""The one builder of the multi-layer perceptrons that methods put behind a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def projector(widths: Sequence[int]) -> nn.Sequential:
    """Build Linear + BatchNorm + ReLU layers through `widths`, the last a Linear without bias or norm.

    The bare last layer is what VICReg, Barlow Twins and IMSVD share: a bias would only shift
    statistics that the loss normalises anyway.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths[:-1]):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=False))
    return nn.Sequential(*layers)
