"""What a code is worth on images that its head was not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from imsvd.code_measures import pair_information
from imsvd.discretizing.feature_file import Half, Rows, read_features
from imsvd.information import codes, max_probabilities, soft_discretize

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
        unrepeated_share: share of it that no two variables both say, see `unrepeated_share`; NaN if
            the images are too few to tell.

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
    plain, across, *seen = counts
    return {
        "share_decided": decided / choices,
        "share_agreeing": agreeing / choices,
        "shared_nats": shared_nats(plain, units),
        "surviving_nats": float(pair_information(across, units).diagonal().sum()),
        "unrepeated_share": unrepeated_share(seen[0], seen[1], across, units, len(rows)),
    }


def fewest_images(freedom: int) -> int:
    """Return the images that it takes to tell what a code of so many free frequencies repeats."""
    return math.ceil(2.5 * freedom) + 1


def unrepeated_share(
    first: Tensor, second: Tensor, across: Tensor, units: tuple[int, ...], images: int
) -> float:
    """Return the share of what variables say about their other view that they do not repeat.

    It is I(C'; C'') / Σ_m I(c'_m; c''_m), where I is the information of Gaussian variables with the
    covariances of the units: 1 if variables are independent, 1/M if all are copies of one. In
    contrast to the information of discrete codes, which 2^64 codes hide from any number of images,
    it takes all pairs of variables into account at once.

    Args:
        first: (width, width) images of the first view that take both of two units.
        second: the same for the second view.
        across: the same for a unit in the first and another one in the second view.
        units: number of units of each variable.
        images: number of images.
    """
    joint = torch.cat([torch.cat([first, across], 1), torch.cat([across.T, second], 1)])
    frequencies = joint.diagonal() / images
    covariance = joint / images - torch.outer(frequencies, frequencies)
    sizes = torch.tensor([*units, *units])
    block = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    # As if one image disagreed with the others: equal views have much information, but not without end.
    covariance = torch.where(block[:, None] == block, covariance, covariance * (1 - 1 / images))
    used = torch.nonzero((frequencies > 0) & (frequencies < 1))[:, 0]
    # The frequencies of a variable sum to 1, so that the last one is not free.
    free = used[:-1][block[used[1:]] == block[used[:-1]]]
    if images < fewest_images(len(free) // 2):
        return math.nan
    covariance, block = covariance[free][:, free], block[free]

    def information(variables: Tensor) -> float:
        """Return what the named variables of the two views tell about each other."""
        one, other = (torch.isin(block, variables + view) for view in (0, len(units)))
        parts = [_log_determinant(covariance, part, images) for part in (one, other, one | other)]
        return (parts[0] + parts[1] - parts[2]) / 2

    alone = sum(information(torch.tensor([number])) for number in range(len(units)))
    together = information(torch.arange(len(units)))
    return min(1.0, max(0.0, together / alone)) if alone > 0 else 1.0


def _log_determinant(covariance: Tensor, chosen: Tensor, images: int) -> float:
    """Return ln |Σ| of the chosen rows, without the bias that few images give it (Wishart's law)."""
    count = int(chosen.sum())
    part = torch.linalg.slogdet(covariance[chosen][:, chosen] * images / 2).logabsdet
    degrees = (images - 1 - torch.arange(count, dtype=torch.float64)) / 2
    return float(part - torch.digamma(degrees).sum())


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
