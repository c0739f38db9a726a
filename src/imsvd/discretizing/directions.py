"""The directions of feature space in which images differ most, compared with views of one image.

Let T be the covariance of features over images, and W that of the views of one image around their
mean, averaged over images. Along a direction v, the ratio vᵀTv / vᵀWv says how much better two views
of one image can be told from views of two images; if features are Gaussian, the information that a
view has about another one grows with it alone. The directions that maximize it solve

    T v = s W v,    vᵀWv = 1.

In these coordinates the views of every image scatter by one in all directions, so that a large
difference is one that lasts. Encoders weigh directions otherwise: a few that say little about an
image can have most of the variance, and hide its neighbors.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from imsvd.discretizing.feature_file import Half, Rows, read_features
from imsvd.views import keyed_order

SAMPLE = 8192
"""Most images that the covariances are taken from."""
CHUNK = 256
"""Images that are read at a time."""
SHRINKAGE = 0.1
"""Share of W's mean variance that is added to every direction: few images miss some of them."""
SAMPLE_STREAM = 2**16 - 5
"""Number of the random stream that draws the sample; no real view has it."""


class FeatureDirections(nn.Module):
    """Stands where a method expects its backbone: maps features to coordinates that last.

    Args:
        mean: (width,) of the features.
        matrix: (width, directions).
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, mean: Tensor, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("matrix", matrix)
        self.num_features = matrix.shape[1]

    def forward(self, features: Tensor) -> Tensor:
        """Return the coordinates of `features`, (batch, directions)."""
        return (features - self.mean) @ self.matrix

    def fold(self, state: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
        """Return `state` with this map in the weights of `layer`, which then reads features.

        A layer without bias can take the map only if it does not move the origin.
        """
        weight = state[f"{layer}.weight"] @ self.matrix.T
        folded = {**state, f"{layer}.weight": weight}
        if (bias := state.get(f"{layer}.bias")) is not None:
            folded[f"{layer}.bias"] = bias - weight @ self.mean
        else:
            assert not self.mean.any()
        return folded

    def around_origin(self) -> FeatureDirections:
        """Return the map that leaves the origin where it is."""
        return FeatureDirections(torch.zeros_like(self.mean), self.matrix)


def lasting_directions(features: Half, rows: Rows, most: int, seed: int) -> FeatureDirections:
    """Return at most `most` directions, the most telling first, scaled to a mean variance of 1.

    Args:
        features: (images, views + 1, width), the plain image last.
        rows: images to take the covariances from; of many, a random sample.
        most: number of directions; no more than the width or the images allow.
        seed: decides the sample.
    """
    sample = np.sort(rows[keyed_order(seed, 0, rows, SAMPLE_STREAM)[:SAMPLE]])
    mean, total, within = _covariances(features, sample)
    width = len(mean)
    # The smallest number only matters where all views are equal.
    within.diagonal().add_(SHRINKAGE * within.diagonal().mean() + torch.finfo(torch.float32).tiny)
    lower = torch.linalg.cholesky(within)
    # T v = s W v with W = LLᵀ is the ordinary problem of L⁻¹ T L⁻ᵀ.
    total = torch.linalg.solve_triangular(lower, total, upper=False)
    total = torch.linalg.solve_triangular(lower, total.T, upper=False)
    del within  # of a wide encoder, each of these takes as much memory as a batch
    ratios, vectors = torch.linalg.eigh(total)
    count = min(most, width, max(1, len(sample) - 1))
    ratios, vectors = ratios[-count:].flip(0), vectors[:, -count:].flip(1)
    matrix = torch.linalg.solve_triangular(lower.T, vectors, upper=True)
    matrix /= ratios.clamp_min(0).mean().sqrt().clamp_min(1e-6)
    return FeatureDirections(mean.float(), matrix.float())


def _covariances(features: Half, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean and the covariance of plain images, and that of views around their mean."""
    _, count, width = features.shape
    shift = read_features(features, rows[:CHUNK], np.full(len(rows[:CHUNK]), -1)).mean(0)
    summed = torch.zeros(width, dtype=torch.float64)
    total, within = torch.zeros(2, width, width, dtype=torch.float64)
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        *views, plain = (
            read_features(features, chunk, np.full(len(chunk), v)) for v in range(count)
        )
        plain -= shift  # squares of small numbers keep their digits
        summed += plain.double().sum(0)
        total += (plain.T @ plain).double()
        stacked = torch.stack(views)
        centered = stacked.sub_(stacked.mean(0)).flatten(0, 1)
        within += (centered.T @ centered).double()
    mean = summed / len(rows)
    total = total / len(rows) - torch.outer(mean, mean)
    return shift.double() + mean, total, within / (len(rows) * (count - 2))
