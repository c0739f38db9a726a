"""A score of explainability for every method: the known attributes that single variables tell.

An encoder without discrete variables gets some: each of its features, cut into equally frequent bins.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from imsvd.encoder import Encoder
from imsvd.explanations.meaning import (
    RECOVERED,
    Codes,
    normalized_information,
    shuffled_baseline,
)
from imsvd.information import codes, soft_discretize

BINS = 8


def explainability(
    encoder: Encoder, features: Tensor, attributes: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return how many attributes are recovered and the mean of their best NMI; empty without any.

    Args:
        encoder: whose variables, if it has any, are asked.
        features: (n, num_features) its features of n images.
        attributes: (n,) values of each; below 0 where unknown.
    """
    variables = variable_codes(encoder, features)
    best, recovered = [], 0
    for values in attributes.values():
        known = values.numpy() >= 0
        if len(np.unique(values.numpy()[known])) < 2:
            continue
        shown = variables[known], values.numpy()[known]
        best.append(float(normalized_information(*shown).max()))
        recovered += best[-1] - shuffled_baseline(*shown) >= RECOVERED
    if not best:
        return {}
    return {"attributes_recovered": float(recovered), "mean_best_nmi": float(np.mean(best))}


@torch.no_grad()
def variable_codes(encoder: Encoder, features: Tensor) -> Codes:
    """The unit of every variable, or the bin of every feature, (n, variables)."""
    units = encoder.description.units
    if not units:
        return feature_bins(features)
    device = encoder.mean.device
    q = soft_discretize(encoder.projector(features.to(device)), units)
    found: Codes = codes(q, units).cpu().numpy()
    return found


def feature_bins(features: Tensor) -> Codes:
    """Cut each feature into `BINS` bins with as many images each; equal values share a bin."""
    values = features.double().numpy()
    edges = np.quantile(values, np.arange(1, BINS) / BINS, axis=0)
    return np.stack(
        [np.searchsorted(edges[:, n], values[:, n], side="right") for n in range(values.shape[1])],
        axis=1,
    ).astype(np.uint8)
