import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd import distributed
from imsvd.losses.pcl import PCLLoss, Prototypes, concentrations, prototype_contrast
from tests import gloo
from tests.oracles import pcl as oracle

BATCH, WIDTH = 6, 5


def random(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)


def units(rows: int, seed: int) -> Tensor:
    return F.normalize(random(rows, seed), dim=1)


def clustering(clusters: int, negatives: int, seed: int) -> Prototypes:
    generator = torch.Generator().manual_seed(seed)
    phi = 0.1 + torch.rand(clusters, generator=generator, dtype=torch.float64)
    own = torch.randint(clusters, (BATCH,), generator=generator)
    drawn = torch.randperm(clusters, generator=generator)[:negatives]
    return Prototypes(units(clusters, seed), phi, own, drawn)


def literal(query: Tensor, key: Tensor, queue: Tensor, groups: list[Prototypes]) -> Tensor:
    parts = [
        oracle.proto_nce(query, g.centroids, g.concentrations, g.own, g.negatives.tolist())
        for g in groups
    ]
    total = oracle.info_nce(query, key, queue, 0.2)
    return total + torch.stack(parts).mean() if parts else total


@given(
    sizes=st.lists(st.tuples(st.integers(2, 7), st.integers(1, 7)), max_size=3),
    queue=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_loss_and_gradient_equal_the_literal_equations(
    sizes: list[tuple[int, int]], queue: int, seed: int
) -> None:
    query, key = random(BATCH, seed).requires_grad_(), random(BATCH, seed + 1)
    groups = [clustering(size, most, seed + n) for n, (size, most) in enumerate(sizes)]
    expected = literal(query, key, units(queue, seed + 9), groups)
    output = PCLLoss(0.2)(query, key, units(queue, seed + 9), groups)
    torch.testing.assert_close(output.loss, expected, rtol=1e-11, atol=1e-11)
    (gradient,) = torch.autograd.grad(output.loss, query)
    (wanted,) = torch.autograd.grad(expected, query)
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.stack(list(output.terms.values())).sum(), expected.detach())
    assert ("prototypes" in output.terms) == bool(groups)


def test_all_prototypes_make_a_cross_entropy() -> None:
    query, group = units(BATCH, 0), clustering(7, 7, 1)
    logits = query @ group.centroids.T / group.concentrations
    expected = F.cross_entropy(logits, group.own)
    torch.testing.assert_close(prototype_contrast(query, group), expected)


def test_equal_prototypes_give_the_logarithm_of_their_number() -> None:
    query, group = units(BATCH, 0), clustering(7, 7, 1)
    same = group._replace(
        centroids=group.centroids[:1].expand(7, -1), concentrations=torch.ones(7).double()
    )
    assert float(prototype_contrast(query, same)) == pytest.approx(math.log(7))


@pytest.mark.parametrize("seed", range(5))
def test_concentrations_equal_the_literal_equation(seed: int) -> None:
    points, centroids = random(40, seed), random(12, seed + 1)
    assignments = torch.cdist(points, centroids).argmin(1)  # some clusters have one point or none
    distances = (points - centroids[assignments]).norm(dim=1)
    actual = concentrations(distances, assignments, 12, 0.2)
    expected = oracle.concentrations(points, centroids, assignments, 0.2)
    assert actual.tolist() == pytest.approx(expected, rel=1e-12)
    assert float(actual.mean()) == pytest.approx(0.2)


def test_a_tight_cluster_is_more_concentrated_than_a_loose_one() -> None:
    distances = torch.tensor([0.1, 0.1, 0.1, 0.9, 0.9, 0.9])
    phi = concentrations(distances, torch.tensor([0, 0, 0, 1, 1, 1]), 2, 0.2)
    assert phi[0] < 0.2 < phi[1]


@pytest.mark.parametrize("distances", [torch.zeros(6), torch.tensor([0.0, 0, 0, 0, 0.5, 0.5])])
def test_copies_of_an_image_leave_temperatures_usable(distances: Tensor) -> None:
    phi = concentrations(distances, torch.tensor([0, 0, 1, 1, 2, 2]), 3, 0.2)
    assert phi.isfinite().all()
    assert (phi > 1e-4).all()
    assert float(phi.mean()) == pytest.approx(0.2)


def test_half_precision_is_computed_in_single() -> None:
    half = random(BATCH, 0).bfloat16().requires_grad_()
    arguments = random(BATCH, 1).bfloat16(), units(4, 2).float(), [clustering(5, 5, 3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = PCLLoss()(half, *arguments)
    assert output.loss.dtype == torch.float32
    torch.testing.assert_close(output.loss, PCLLoss()(half.float(), *arguments).loss)


def on_one_rank() -> dict[str, Any]:
    own = distributed.own_slice(BATCH)
    query = random(BATCH, 0)[own].requires_grad_()
    group = clustering(7, 4, 3)
    group = group._replace(own=group.own[own])
    output = PCLLoss()(query, random(BATCH, 1)[own], units(4, 2), [group])
    (gradient,) = torch.autograd.grad(output.loss, query)
    return {"gradient": gradient, "loss": output.loss.detach(), "terms": output.terms}


def test_two_ranks_equal_one_process_on_the_joined_batch() -> None:
    expected = on_one_rank()
    ranks = gloo.run(2, on_one_rank)
    joined = torch.cat([result["gradient"] for result in ranks]) / 2
    torch.testing.assert_close(joined, expected["gradient"], rtol=1e-10, atol=1e-12)
    for result in ranks:
        torch.testing.assert_close(result["loss"], expected["loss"], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(result["terms"], expected["terms"], rtol=1e-11, atol=1e-12)
