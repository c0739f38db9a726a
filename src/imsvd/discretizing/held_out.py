"""What a code is worth on images that its head was not trained on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from imsvd.discretizing.cache import Half, release
from imsvd.information import (
    codes,
    max_probabilities,
    soft_discretize,
    surprise,
    variable_sums,
)

CHUNK = 4096
"""Images per pass through the head."""


@torch.no_grad()
def measure_codes(
    head: nn.Module, features: Half, rows: NDArray[np.int64], units: tuple[int, ...]
) -> dict[str, float]:
    """Measure the hard codes of the images in `rows`.

    Returns:
        share_decided: share of variables of plain images whose largest probability exceeds 0.9.
        share_agreeing: share of variables with the same unit in the first two augmented views.
        shared_nats: mean mutual information of two variables over plain images, less what
            independent variables show by chance in so few images.
    """
    head.eval()
    decided, agreeing = 0, 0
    joint = torch.zeros(sum(units), sum(units), dtype=torch.float64)
    for chunk in _chunks(rows):
        first, second, plain = (
            soft_discretize(head(_on(head, features[chunk, view])), units) for view in (0, 1, -1)
        )
        release(features)
        decided += int((max_probabilities(plain, units) > 0.9).sum())
        agreeing += int((codes(first, units) == codes(second, units)).sum())
        hard = one_hot_codes(plain, units)
        joint += (hard.T @ hard).double().cpu()
    head.train()
    choices = len(rows) * len(units)
    return {
        "share_decided": decided / choices,
        "share_agreeing": agreeing / choices,
        "shared_nats": shared_nats(joint, units, len(rows)),
    }


def one_hot_codes(q: Tensor, units: tuple[int, ...]) -> Tensor:
    """Return 1 for the most probable unit of each variable and 0 for the others, (batch, width)."""
    chosen = codes(q, units).unbind(-1)
    return torch.cat([F.one_hot(c, size).float() for c, size in zip(chosen, units, strict=True)], 1)


def shared_nats(joint: Tensor, units: tuple[int, ...], count: int) -> float:
    """Return the mean mutual information of two variables, given how often their units meet.

    The part that `count` images show by chance is subtracted: (d' - 1)(d'' - 1) / 2N for variables
    that use d' and d'' units (Miller, 1955).

    Args:
        joint: (width, width) counts of pairs of units.
        units: number of units of each variable.
        count: number of images.
    """
    if len(units) < 2 or not count:
        return 0.0
    probabilities = joint / count
    marginals = probabilities.diagonal()
    single = variable_sums(surprise(marginals), units)
    rows = torch.split(surprise(probabilities), list(units))
    pairs = torch.stack([variable_sums(row.sum(0), units) for row in rows])
    used = variable_sums((marginals > 0).double(), units) - 1
    information = single[:, None] + single[None, :] - pairs - torch.outer(used, used) / (2 * count)
    off_diagonal = ~torch.eye(len(units), dtype=torch.bool)
    return float(information[off_diagonal].mean())


def _chunks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def _on(head: nn.Module, halves: Half) -> Tensor:
    return torch.from_numpy(halves.astype(np.float32)).to(next(head.parameters()).device)
