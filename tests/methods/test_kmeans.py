from typing import Any

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.methods import kmeans as module
from imsvd.methods.kmeans import assign, cluster_together, kmeans
from tests import gloo


def blobs(points: int = 300, centers: int = 6, width: int = 4, spread: float = 1.0) -> Tensor:
    values, _ = make_blobs(points, width, centers=centers, cluster_std=spread, random_state=0)
    return torch.from_numpy(values)


def literal_assignment(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    distances = torch.stack([((points - centroid) ** 2).sum(1) for centroid in centroids], 1)
    nearest = distances.min(1)
    return nearest.indices, nearest.values


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_algorithm_of_scikit_learn_from_the_same_start(seed: int) -> None:
    points = blobs(spread=4.0)
    start = kmeans(points, 6, seed=seed, iterations=0).centroids
    reference = KMeans(6, init=start.numpy(), n_init=1, tol=0, max_iter=200).fit(points.numpy())
    clusters = kmeans(points, 6, seed=seed, iterations=200)
    assert float(clusters.distances.sum()) == pytest.approx(reference.inertia_, rel=1e-9)
    assert clusters.assignments.tolist() == reference.labels_.tolist()
    torch.testing.assert_close(clusters.centroids, torch.from_numpy(reference.cluster_centers_))


def test_separate_blobs_are_found_by_the_best_of_some_seeds() -> None:
    points = blobs(spread=0.5)
    reference = KMeans(6, n_init=10, random_state=0).fit(points.numpy())
    inertias = [float(kmeans(points, 6, seed=seed).distances.sum()) for seed in range(20)]
    assert min(inertias) == pytest.approx(reference.inertia_, rel=1e-6)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = blobs()
    whole = kmeans(points, 20, seed=1)
    monkeypatch.setattr(module, "TILE_CELLS", 20 * 7)  # seven points at a time
    pieces = kmeans(points, 20, seed=1)
    assert torch.equal(whole.assignments, pieces.assignments)
    torch.testing.assert_close(whole.centroids, pieces.centroids)


def test_assignment_is_to_the_nearest_centroid() -> None:
    points, centroids = blobs(50), blobs(9, spread=3.0)
    assignments, distances = assign(points, centroids)
    expected, values = literal_assignment(points, centroids)
    assert torch.equal(assignments, expected)
    torch.testing.assert_close(distances, values)


def test_the_seed_alone_decides() -> None:
    torch.manual_seed(0)
    first = kmeans(blobs(), 20, seed=3)
    torch.manual_seed(1)
    second = kmeans(blobs(), 20, seed=3)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    other = kmeans(blobs(), 20, seed=4)
    assert not torch.equal(first.assignments, other.assignments)


def test_empty_clusters_start_again_far_from_the_others() -> None:
    # 40 copies of one point and 5 far ones: almost every start draws copies, whose clusters are empty.
    points = torch.cat([torch.zeros(40, 2), 10 * torch.eye(5, 2) + torch.arange(5).unsqueeze(1)])
    clusters = kmeans(points.double(), 6, seed=0, iterations=20)
    assert float(clusters.distances.sum()) == 0
    assert set(clusters.assignments.tolist()) == set(range(6))


def test_half_precision_points_are_clustered_in_single() -> None:
    clusters = kmeans(blobs().half(), 3, seed=0)
    assert clusters.centroids.dtype == torch.float32


@pytest.mark.parametrize("number", [0, 300, 301])
def test_impossible_numbers_of_clusters_are_refused(number: int) -> None:
    with pytest.raises(InputError, match=f"{number} clusters cannot be made of 300 points"):
        kmeans(blobs(), number, seed=0)


SIZES = (5, 9, 3)


def on_one_rank() -> dict[str, Any]:
    results = cluster_together(blobs(), SIZES, seed=10, iterations=4)
    return {"results": [tuple(result) for result in results], "rank": distributed.rank()}


def test_ranks_share_the_work_and_all_get_every_clustering() -> None:
    expected = [
        kmeans(blobs(), size, seed=10 + index, iterations=4) for index, size in enumerate(SIZES)
    ]
    for rank in [on_one_rank(), *gloo.run(2, on_one_rank)]:
        for result, single in zip(rank["results"], expected, strict=True):
            for actual, wanted in zip(result, single, strict=True):
                assert torch.equal(actual, wanted)
