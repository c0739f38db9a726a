import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import SwaVLoss as LightlySwAVLoss
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.losses.base import LossOutput
from imsvd.losses.swav import SwAVLoss, sinkhorn_codes
from tests.losses.comparing import (
    assert_half_precision_is_computed_in_single,
    assert_two_ranks_equal_one_process,
    embeddings,
)
from tests.losses.parity import Loss, gradients, relative_error
from tests.oracles import swav as oracle


def cosines(batch: int, prototypes: int, seed: int) -> Tensor:
    return embeddings(batch, prototypes, seed).detach().tanh().requires_grad_()


@given(
    batch=st.integers(1, 5),
    prototypes=st.integers(2, 6),
    views=st.integers(2, 4),
    rows=st.integers(0, 3),
    iterations=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_equal_the_literal_equations(
    batch: int, prototypes: int, views: int, rows: int, iterations: int, seed: int
) -> None:
    scores = [cosines(batch, prototypes, seed + view) for view in range(views)]
    earlier = [cosines(rows, prototypes, seed + 10 + view) for view in range(2)] if rows else []
    expected = oracle.loss(scores, 0.2, 0.1, iterations, earlier)
    output = SwAVLoss(0.2, 0.1, iterations)(scores, earlier)
    assert relative_error(output.loss, expected) <= 1e-10
    wanted = gradients(expected, scores)
    assert relative_error(gradients(output.loss, scores), wanted) <= 1e-10


@pytest.mark.parametrize("queued", [False, True])
def test_lightly_gives_the_same_value_and_gradients(queued: bool) -> None:
    scores = [cosines(6, 5, seed) for seed in range(3)]
    earlier = [cosines(4, 5, seed).detach() for seed in (8, 9)] if queued else []
    expected = LightlySwAVLoss()(scores[:2], scores[2:], earlier or None).squeeze()
    output = SwAVLoss()(scores, earlier)
    assert relative_error(output.loss, expected) <= 1e-10
    wanted = gradients(expected, scores)
    assert relative_error(gradients(output.loss, scores), wanted) <= 1e-10


def test_codes_sum_to_one_and_use_all_prototypes_equally() -> None:
    codes = sinkhorn_codes(cosines(40, 4, 0), 0.5, 50)
    torch.testing.assert_close(codes.sum(dim=1), torch.ones(40).double())
    torch.testing.assert_close(codes.sum(dim=0), torch.full((4,), 10.0).double())


def test_codes_break_a_collapse_and_stay_finite_at_the_smallest_epsilon() -> None:
    scores = torch.full((6, 3), -1.0)
    scores[:, 0] = 1.0  # every sample prefers the same prototype
    codes = sinkhorn_codes(scores, 0.03, 3)
    torch.testing.assert_close(codes, torch.full((6, 3), 1 / 3))


def test_value_of_even_and_of_exact_predictions() -> None:
    even = SwAVLoss()([torch.zeros(4, 5).double()] * 2)
    assert float(even.loss) == pytest.approx(math.log(5))
    assert float(even.terms["code_entropy"]) == pytest.approx(math.log(5))
    assert float(even.terms["divergence"]) == pytest.approx(0, abs=1e-12)
    certain = 2 * torch.eye(4).double() - 1
    exact = SwAVLoss(0.01, 0.03)([certain] * 2)
    assert float(exact.loss) == pytest.approx(0, abs=1e-12)


def test_terms_add_up_to_the_loss() -> None:
    output = SwAVLoss()([cosines(4, 5, seed) for seed in range(3)])
    torch.testing.assert_close(output.loss.detach(), sum(output.terms.values()))
    assert not any(term.requires_grad for term in output.terms.values())


def with_queue(first: Tensor, second: Tensor) -> LossOutput:
    """The loss with each rank's share of a queue that all ranks hold."""
    queue = [cosines(4, first.shape[1], seed).detach() for seed in (50, 51)]
    own = distributed.own_slice(4)
    output: LossOutput = SwAVLoss()([first.tanh(), second.tanh()], [rows[own] for rows in queue])
    return output


def without_queue(first: Tensor, second: Tensor) -> LossOutput:
    output: LossOutput = SwAVLoss()([F.normalize(first, dim=1), F.normalize(second, dim=1)])
    return output


def test_half_precision_is_computed_in_single() -> None:
    assert_half_precision_is_computed_in_single(
        lambda first, second: SwAVLoss(1.0, 1.0)([first, second]), 6, 8
    )


def test_unequal_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"SwAVLoss needs .* got \(4, 8\), \(5, 8\)"):
        SwAVLoss()([torch.zeros(4, 8), torch.zeros(5, 8)])


@pytest.mark.parametrize("loss", [with_queue, without_queue])
def test_two_ranks_equal_one_process_on_the_joined_batch(loss: Loss) -> None:
    assert_two_ranks_equal_one_process(loss, 3, 5)
