import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd import distributed
from imsvd.losses.la import LALoss, background_neighbors, close_neighbors, local_aggregation
from tests import gloo
from tests.oracles import la as oracle

IMAGES, WIDTH = 13, 5


def embeddings(batch: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(batch, WIDTH, generator=generator, dtype=torch.float64)
    return (3 * values).requires_grad_()


def surroundings(seed: int, clusterings: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Positions of six samples, a bank and labels."""
    generator = torch.Generator().manual_seed(seed)
    bank = torch.randn(IMAGES, WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (clusterings, IMAGES), generator=generator)
    return torch.randperm(IMAGES, generator=generator)[:6], F.normalize(bank, dim=1), labels


@given(
    batch=st.integers(1, 6),
    k=st.integers(1, IMAGES),
    clusterings=st.integers(1, 3),
    temperature=st.sampled_from([0.07, 0.5]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_loss_and_gradient_equal_the_literal_equations(
    batch: int, k: int, clusterings: int, temperature: float, seed: int
) -> None:
    embedding = embeddings(batch, seed)
    samples, bank, labels = surroundings(seed, clusterings)
    samples = samples[:batch]
    expected = oracle.loss(embedding, samples, bank, labels, k, temperature)
    actual = LALoss(k, temperature)(embedding, samples, bank, labels).loss
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)
    (gradient,) = torch.autograd.grad(actual, embedding)
    (wanted,) = torch.autograd.grad(expected, embedding)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-10)


def test_neighbors_by_hand() -> None:
    similarities = torch.tensor([[0.9, 0.1, 0.5, -0.3], [0.2, 0.8, 0.7, 0.6]])
    samples = torch.tensor([3, 1])
    background = background_neighbors(similarities, samples, 3)
    assert background.tolist() == [[3, 0, 2], [1, 2, 3]]  # 3 counts although it is the furthest
    labels = torch.tensor([[0, 0, 1, 1], [5, 6, 7, 5]])
    close = close_neighbors(labels, samples, background)
    assert close.tolist() == [[True, True, True], [True, False, False]]


def test_closed_forms() -> None:
    even = torch.zeros(2, 8)
    quarter = torch.tensor([[True, True] + [False] * 6] * 2)
    assert float(local_aggregation(even, quarter)) == pytest.approx(math.log(4))
    assert float(local_aggregation(torch.randn(2, 8), torch.ones(2, 8, dtype=torch.bool))) == 0


def test_one_cluster_leaves_nothing_to_learn() -> None:
    samples, bank, labels = surroundings(0)
    output = LALoss(5)(embeddings(6, 0), samples, bank, torch.zeros_like(labels))
    assert float(output.loss.detach()) == 0
    assert set(output.terms) == {"local_aggregation"}
    assert not output.terms["local_aggregation"].requires_grad


def test_half_precision_is_computed_in_single_and_stays_finite() -> None:
    samples, bank, labels = surroundings(0)
    half = (100 * embeddings(6, 0)).detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = LALoss(5, 0.005)(half, samples, bank.float(), labels)
    assert output.loss.dtype == torch.float32
    expected = LALoss(5, 0.005)(half.float(), samples, bank.float(), labels).loss
    torch.testing.assert_close(output.loss, expected)
    (gradient,) = torch.autograd.grad(output.loss, half)
    assert gradient.isfinite().all()


def on_one_rank() -> dict[str, Any]:
    own = distributed.own_slice(6)
    samples, bank, labels = surroundings(2)
    embedding = embeddings(6, 2)[own].detach().requires_grad_()
    output = LALoss(5)(embedding, samples[own], bank, labels)
    (gradient,) = torch.autograd.grad(output.loss, embedding)
    return {"gradient": gradient, "term": output.terms["local_aggregation"].double()}


def test_two_ranks_equal_one_process_on_the_joined_batch() -> None:
    expected = on_one_rank()
    ranks = gloo.run(2, on_one_rank)
    joined = torch.cat([result["gradient"] for result in ranks]) / 2
    torch.testing.assert_close(joined, expected["gradient"], rtol=1e-10, atol=1e-12)
    for result in ranks:
        torch.testing.assert_close(result["term"], expected["term"], rtol=1e-6, atol=1e-6)
