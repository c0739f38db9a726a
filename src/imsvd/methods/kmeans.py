"""Lloyd's k-means, a piece of the distance matrix at a time.

Distances are computed for `TILE_CELLS` pairs of point and centroid at a time and reduced to the
nearest centroid at once, so the whole matrix never exists, even for a million points and a hundred
thousand clusters. Centroids start at points drawn by a seeded generator; a cluster that loses all
its points restarts at one of the points furthest from their own centroid. The same seed gives the
same clusters (on a GPU, up to the order of its additions).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.information import at_least_float32

# 64 MB of distances in float32: large enough for the matrix kernels, small beside the points.
TILE_CELLS = 2**24

IMAGES_PER_CLUSTER = 10
"""Smallest average cluster when settings are fitted to few images."""


class Clusters(NamedTuple):
    """Result of k-means.

    Attributes:
        centroids: `(num_clusters, width)`.
        assignments: `(points,)` cluster of each point.
        distances: `(points,)` squared Euclidean distance of each point to its centroid.
    """

    centroids: Tensor
    assignments: Tensor
    distances: Tensor


@torch.no_grad()
def kmeans(points: Tensor, num_clusters: int, *, seed: int, iterations: int = 20) -> Clusters:
    """Cluster `(points, width)`.

    Args:
        points: vectors to cluster.
        num_clusters: fewer than points.
        seed: seed of the draw of the first centroids.
        iterations: largest number of centroid updates; stops early if the assignments settle.
    """
    if not 0 < num_clusters < len(points):
        raise InputError(
            f"{num_clusters} clusters cannot be made of {len(points)} points; "
            "choose at least 1 and fewer than there are points."
        )
    with torch.autocast(points.device.type, enabled=False):
        points = at_least_float32(points)
        centroids = points[_draw(len(points), num_clusters, seed).to(points.device)]
        assignments, distances = assign(points, centroids)
        for _ in range(iterations):
            centroids = _update(points, assignments, distances, num_clusters)
            previous = assignments
            assignments, distances = assign(points, centroids)
            if torch.equal(assignments, previous):
                break
    return Clusters(centroids, assignments, distances)


def assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centroid of each point and the squared distance to it, `(points,)` both."""
    lengths = centroids.square().sum(1)
    rows = max(1, TILE_CELLS // len(centroids))
    nearest, distances = [], []
    for part in torch.split(points, rows):
        # |point|² is the same for all centroids.
        tile = torch.addmm(lengths, part, centroids.T, alpha=-2)
        smallest, index = tile.min(dim=1)
        nearest.append(index)
        distances.append((smallest + part.square().sum(1)).clamp_min_(0))
    return torch.cat(nearest), torch.cat(distances)


def cluster_together(
    points: Tensor, sizes: Sequence[int], *, seed: int, iterations: int = 20
) -> list[Clusters]:
    """Return one clustering per entry of `sizes`; ranks share the work and all get every result.

    Args:
        points: `(points, width)`, the same on every rank.
        sizes: number of clusters of each clustering.
        seed: seed of the first clustering; each further one adds 1.
        iterations: as for `kmeans`.
    """
    results = []
    for index, size in enumerate(sizes):
        if index % distributed.world_size() == distributed.rank():
            results.append(kmeans(points, size, seed=seed + index, iterations=iterations))
        else:
            results.append(_blank(points, size))
    return [
        Clusters(
            *(distributed.broadcast(part, index % distributed.world_size()) for part in result)
        )
        for index, result in enumerate(results)
    ]


def check_cluster_counts(sizes: Sequence[int], num_samples: int) -> None:
    """Raise if the setting `method.clusters` needs more images than there are."""
    if max(sizes) >= num_samples:
        raise InputError(
            f"method.clusters={list(sizes)} needs more than the {num_samples} images of the data; "
            f"choose numbers below {num_samples}, such as {max(1, num_samples // 40)}."
        )


def fewer_clusters(sizes: Sequence[int], num_samples: int) -> list[int]:
    """Shrink several clusterings in proportion until the finest has ten images per cluster."""
    share = min(1.0, num_samples / IMAGES_PER_CLUSTER / max(sizes))
    return [max(1, round(size * share)) for size in sizes]


def _draw(count: int, chosen: int, seed: int) -> Tensor:
    """Draw `chosen` different positions, on the CPU so that devices agree."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator, device="cpu")[:chosen]


def _update(points: Tensor, assignments: Tensor, distances: Tensor, num_clusters: int) -> Tensor:
    """Return the means of the clusters; empty ones restart at the points furthest from theirs."""
    sums = points.new_zeros(num_clusters, points.shape[1]).index_add_(0, assignments, points)
    counts = torch.bincount(assignments, minlength=num_clusters)
    centroids = sums / counts.clamp_min(1).unsqueeze(1)
    empty = (counts == 0).nonzero().squeeze(1)
    centroids[empty] = points[distances.topk(len(empty)).indices]
    return centroids


def _blank(points: Tensor, size: int) -> Clusters:
    """Allocate the result of a clustering that another rank computes."""
    dtype = at_least_float32(points[:0]).dtype
    return Clusters(
        points.new_empty(size, points.shape[1], dtype=dtype),
        points.new_empty(len(points), dtype=torch.int64),
        points.new_empty(len(points), dtype=dtype),
    )
