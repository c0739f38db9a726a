import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NTXentLoss
from torch import Tensor

from imsvd.errors import InputError
from imsvd.losses.moco_v2 import MoCoV2Loss
from tests.losses.comparing import (
    assert_equals_oracle,
    assert_half_precision_is_computed_in_single,
    assert_two_ranks_equal_one_process,
    embeddings,
)
from tests.losses.parity import gradients, relative_error
from tests.oracles import moco_v2 as oracle


def negatives(length: int, width: int) -> Tensor:
    return torch.nn.functional.normalize(embeddings(length, width, 99).detach(), dim=1)


@given(
    batch=st.integers(1, 5),
    width=st.integers(2, 6),
    length=st.integers(1, 7),
    temperature=st.sampled_from([0.1, 0.5, 2.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_equal_the_literal_equation(
    batch: int, width: int, length: int, temperature: float, seed: int
) -> None:
    query, key = embeddings(batch, width, seed), embeddings(batch, width, seed + 1)
    queue = negatives(length, width)
    expected = oracle.loss(query, key, queue, temperature)
    loss = functools.partial(MoCoV2Loss(temperature), negatives=queue)
    assert_equals_oracle(loss, expected, query, key)


def test_lightly_gives_the_same_value_and_gradients() -> None:
    query, key = embeddings(6, 5, 0), embeddings(6, 5, 1).detach()
    reference = NTXentLoss(temperature=0.2, memory_bank_size=(8, 5)).double()
    reference.memory_bank.bank.copy_(negatives(8, 5))
    expected = reference(query, key)
    output = MoCoV2Loss(0.2)(query, key, negatives(8, 5))
    assert relative_error(output.loss, expected) <= 1e-10
    assert relative_error(gradients(output.loss, [query]), gradients(expected, [query])) <= 1e-10


def test_only_the_query_gets_a_gradient() -> None:
    query, key, queue = embeddings(4, 3, 0), embeddings(4, 3, 1), embeddings(7, 3, 2)
    MoCoV2Loss()(query, key, queue).loss.backward()
    assert query.grad is not None
    assert key.grad is None
    assert queue.grad is None


def test_bounds_are_reached_by_a_simplex_and_by_collapse() -> None:
    loss = MoCoV2Loss(0.3)
    corners = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]).double()
    ideal, collapsed = loss.bounds(3).values()
    unit = torch.nn.functional.normalize(corners, dim=1)
    output = loss(corners[:1], corners[:1], unit[1:])
    assert float(output.loss) == pytest.approx(ideal["total"], abs=1e-12)
    assert float(output.terms["attraction"]) == pytest.approx(ideal["attraction"], abs=1e-12)
    assert float(output.terms["repulsion"]) == pytest.approx(ideal["repulsion"], abs=1e-12)
    output = loss(corners[:1], corners[:1], unit[:1].expand(3, 3))
    assert float(output.loss) == pytest.approx(math.log(4), abs=1e-12)
    assert collapsed["total"] == pytest.approx(math.log(4))


def test_half_precision_is_computed_in_single() -> None:
    loss = functools.partial(MoCoV2Loss(), negatives=negatives(5, 8).float())
    assert_half_precision_is_computed_in_single(loss, 6, 8)


def test_unequal_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"MoCoV2Loss needs .* got \(4, 8\) and \(5, 8\)"):
        MoCoV2Loss()(torch.zeros(4, 8), torch.zeros(5, 8), torch.zeros(3, 8))


def test_two_ranks_equal_one_process_on_the_joined_batch() -> None:
    loss = functools.partial(MoCoV2Loss(0.5), negatives=negatives(6, 5))
    assert_two_ranks_equal_one_process(loss, 3, 5)
