"""What a code is worth on images that its head was not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from imsvd.code_measures import pair_information
from imsvd.discretizing.feature_file import Half, Rows, read_features
from imsvd.information import codes, max_probabilities, soft_discretize
from imsvd.population.counting import spanning_tree

CHUNK = 4096
"""Images per pass through the head."""


@torch.no_grad()
def measure_codes(
    head: nn.Module, features: Half, rows: NDArray[np.int64], units: tuple[int, ...]
) -> dict[str, float]:
    """Measure the hard codes that `head`, in evaluation mode, gives the images in `rows`.

    Returns:
        share_decided: share of variables of plain images whose largest probability exceeds 0.9.
        share_agreeing: share of variables with the same unit in the first two augmented views.
        shared_nats: mean mutual information of two variables over plain images.
        surviving_nats: information that a variable of one view has about itself in the other,
            summed over variables.
        repeated_nats: information that variables of one view have about each other, summed over the
            tree of the most dependent pairs and averaged over the two views.

    Information is corrected for what independent variables show by chance in so few images.
    """
    decided = agreeing = 0
    width = sum(units)
    counts = torch.zeros(4, width, width, dtype=torch.float64)
    for chunk in _chunks(rows):
        views = [
            soft_discretize(head(_read(head, features, chunk, view)), units) for view in (0, 1, -1)
        ]
        decided += int((max_probabilities(views[-1], units) > 0.9).sum())
        agreeing += int((codes(views[0], units) == codes(views[1], units)).sum())
        first, second, whole = (one_hot_codes(q, units) for q in views)
        pairs = (whole, whole), (first, second), (first, first), (second, second)
        counts += torch.stack([left.T @ right for left, right in pairs]).double().cpu()
    choices = len(rows) * len(units)
    plain, across, *within = counts
    return {
        "share_decided": decided / choices,
        "share_agreeing": agreeing / choices,
        "shared_nats": shared_nats(plain, units),
        "surviving_nats": float(pair_information(across, units).diagonal().sum()),
        "repeated_nats": fmean(_repeated(each, units) for each in within),
    }


def _repeated(counts: Tensor, units: tuple[int, ...]) -> float:
    information = pair_information(counts, units).clamp_min(0).numpy()
    return float(sum(information[edge] for edge in spanning_tree(information)))


def one_hot_codes(q: Tensor, units: tuple[int, ...]) -> Tensor:
    """Return 1 for the most probable unit of each variable and 0 for the others, (batch, width)."""
    chosen = codes(q, units).unbind(-1)
    return torch.cat([F.one_hot(c, size).float() for c, size in zip(chosen, units, strict=True)], 1)


def shared_nats(counts: Tensor, units: tuple[int, ...]) -> float:
    """Return the mean mutual information of two variables, given how often their units meet.

    Args:
        counts: (width, width) images that take both of two units.
        units: number of units of each variable.
    """
    if len(units) < 2:
        return 0.0
    information = pair_information(counts, units)
    off_diagonal = ~torch.eye(len(units), dtype=torch.bool)
    return float(information[off_diagonal].mean())


def _chunks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def _read(head: nn.Module, features: Half, rows: Rows, view: int) -> Tensor:
    device = next(head.parameters()).device
    return read_features(features, rows, np.full(len(rows), view)).to(device)
