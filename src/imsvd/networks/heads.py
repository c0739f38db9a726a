"""Multi-layer perceptrons that methods put behind a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

Last = Literal["bare", "bias", "norm", "norm_without_affine"]


def projector(
    widths: Sequence[int], *, hidden_norm: bool = True, last: Last = "bare"
) -> nn.Sequential:
    """Build a perceptron through `widths`, with ReLU after every layer but the last.

    Args:
        widths: inputs, hidden widths and outputs.
        hidden_norm: whether a BatchNorm follows every hidden Linear.
        last: form of the last layer: a Linear without bias or norm (VICReg, Barlow Twins, IMSVD; a
            bias has no effect on the first two losses), with bias, or followed by a BatchNorm with
            or without scale and shift.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths[:-1]):
        layers.append(nn.Linear(inputs, outputs))
        if hidden_norm:
            layers.append(nn.BatchNorm1d(outputs))
        layers.append(nn.ReLU(inplace=True))
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last == "bias"))
    if last.startswith("norm"):
        layers.append(nn.BatchNorm1d(widths[-1], affine=last == "norm"))
    return nn.Sequential(*layers)
