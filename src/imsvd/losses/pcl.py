"""PCL: Prototypical Contrastive Learning of Unsupervised Representations (https://arxiv.org/abs/2005.04966).

MoCo's InfoNCE separates every image from every other, even from those of its own kind. PCL adds a
second contrast: an embedding must also find the prototype (the centroid) of its cluster among all
prototypes, in several clusterings from coarse to fine. Each prototype has a temperature that suits
its cluster's spread.

| symbol | here |
|---|---|
| v_i, v'_i | `query`, `key`, `(batch, width)`; the key is held constant |
| first term of Eq. 11 | `MoCoV2Loss`: `attraction` and `repulsion` |
| second term of Eq. 11, ProtoNCE | `prototypes`, the mean of `prototype_contrast` over clusterings |
| c^m, φ^m | `Prototypes.centroids`, `Prototypes.concentrations` |
| φ, Eq. 12 | `concentrations` |
| α | `SMOOTHING` |
| τ | `temperature` |

As in the released code, but not in Eq. 12, a cluster of one image takes the largest φ, and φ is
clipped to its 10th and 90th percentile before its mean is scaled to τ. The release draws r random
prototypes and, possibly again, those of all samples of the batch; here all negatives are different
and none is the sample's own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.base import Loss, LossOutput
from imsvd.losses.moco_v2 import MoCoV2Loss

SMOOTHING = 10
"""α, which limits the concentrations of small clusters."""


class Prototypes(NamedTuple):
    """One clustering as a contrast for a batch.

    Attributes:
        centroids: `(clusters, width)` unit vectors.
        concentrations: `(clusters,)` temperature of each.
        own: `(batch,)` cluster of each sample.
        negatives: `(r,)` different clusters to contrast with; a sample skips its own.
    """

    centroids: Tensor
    concentrations: Tensor
    own: Tensor
    negatives: Tensor


def concentrations(
    distances: Tensor, assignments: Tensor, num_clusters: int, temperature: float
) -> Tensor:
    """φ (Eq. 12) of every cluster, `(num_clusters,)`, with a mean of `temperature`.

    Args:
        distances: `(points,)` Euclidean distance of each point to its centroid.
        assignments: `(points,)` cluster of each point.
        num_clusters: number of clusters, empty ones included.
        temperature: τ.
    """
    sizes = torch.bincount(assignments, minlength=num_clusters).to(distances.dtype)
    sums = distances.new_zeros(num_clusters).index_add_(0, assignments, distances)
    spread = sums / (sizes.clamp_min(1) * (sizes + SMOOTHING).log())
    spread = torch.where(sizes > 1, spread, spread.new_zeros(()))
    spread = torch.where(sizes > 1, spread, spread.max())
    low, high = torch.quantile(spread, spread.new_tensor([0.1, 0.9]))
    spread = spread.clamp(low, high)
    # Copies of the same image have no spread; without a floor their temperature would be 0.
    spread = spread.clamp_min(max(float(spread.mean()) / 100, torch.finfo(spread.dtype).tiny))
    return temperature * spread / spread.mean()


def prototype_contrast(query: Tensor, prototypes: Prototypes) -> Tensor:
    """Mean over the batch of -log of the softmax of v·c/φ at the own prototype (Eq. 11).

    Args:
        query: `(batch, width)` unit vectors.
        prototypes: a clustering.
    """
    own, negatives = prototypes.own.unsqueeze(1), prototypes.negatives
    similarity = (query * prototypes.centroids[prototypes.own]).sum(1, keepdim=True)
    positive = similarity / prototypes.concentrations[own]
    others = query @ prototypes.centroids[negatives].T / prototypes.concentrations[negatives]
    others = others.masked_fill(own == negatives, float("-inf"))
    return (torch.cat([positive, others], 1).logsumexp(1, keepdim=True) - positive).mean()


class PCLLoss(Loss):
    """InfoNCE and, if clusterings are given, the mean of their prototype contrasts (Eq. 11).

    Only the query gets a gradient.

    Args:
        temperature: τ of InfoNCE; prototypes have their own.
    """

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.instance = MoCoV2Loss(temperature)

    def forward(
        self, query: Tensor, key: Tensor, negatives: Tensor, clusterings: Sequence[Prototypes] = ()
    ) -> LossOutput:
        """Loss of `(batch, width)` queries and keys against `(length, width)` unit vectors."""
        instance: LossOutput = self.instance(query, key, negatives)
        if not clusterings:
            return instance
        with torch.autocast(query.device.type, enabled=False):
            query = F.normalize(at_least_float32(query), dim=1)
            contrasts = [
                prototype_contrast(query, _in_dtype(prototypes, query.dtype))
                for prototypes in clusterings
            ]
            contrast = distributed.mean_over_ranks_with_gradient(torch.stack(contrasts).mean())
        terms = {**instance.terms, "prototypes": contrast.detach()}
        return LossOutput(instance.loss + contrast, terms)


def _in_dtype(prototypes: Prototypes, dtype: torch.dtype) -> Prototypes:
    centroids, phi = prototypes.centroids.to(dtype), prototypes.concentrations.to(dtype)
    return prototypes._replace(centroids=centroids, concentrations=phi)
