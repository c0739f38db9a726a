import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NegativeCosineSimilarity

from imsvd.errors import InputError
from imsvd.losses.byol import BYOLLoss
from tests.losses.comparing import (
    assert_equals_oracle,
    assert_half_precision_is_computed_in_single,
    assert_two_ranks_equal_one_process,
    embeddings,
)
from tests.losses.parity import gradients, relative_error
from tests.oracles import byol as oracle


@given(batch=st.integers(1, 6), width=st.integers(2, 6), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_equal_the_literal_equation(batch: int, width: int, seed: int) -> None:
    first, second = embeddings(batch, width, seed), embeddings(batch, width, seed + 1)
    assert_equals_oracle(BYOLLoss(), oracle.loss(first, second), first, second)


def test_lightly_gives_the_same_value_and_gradients() -> None:
    first, second = embeddings(6, 5, 0), embeddings(6, 5, 1)
    expected = 2 + 2 * NegativeCosineSimilarity()(first, second.detach())
    output = BYOLLoss()(first, second)
    assert relative_error(output.loss, expected) <= 1e-10
    wanted = gradients(expected, [first, second])
    assert relative_error(gradients(output.loss, [first, second]), wanted) <= 1e-10


@pytest.mark.parametrize(("scale", "expected"), [(3.0, 0.0), (-0.5, 4.0)])
def test_value_of_equal_and_opposite_directions(scale: float, expected: float) -> None:
    values = embeddings(4, 3, 0).detach()
    output = BYOLLoss()(values, scale * values)
    assert float(output.loss) == pytest.approx(expected, abs=1e-12)
    assert float(output.terms["cosine"]) == pytest.approx(1.0 if scale > 0 else -1.0)


def test_the_target_gets_no_gradient() -> None:
    first, second = embeddings(4, 3, 0), embeddings(4, 3, 1)
    BYOLLoss()(first, second).loss.backward()
    assert first.grad is not None
    assert second.grad is None


def test_finite_at_zero() -> None:
    first = torch.zeros(3, 4, requires_grad=True)
    loss = BYOLLoss()(first, torch.zeros(3, 4)).loss
    assert loss.isfinite()
    assert gradients(loss, [first]).isfinite().all()


def test_half_precision_is_computed_in_single() -> None:
    assert_half_precision_is_computed_in_single(BYOLLoss(), 6, 8)


def test_unequal_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"BYOLLoss needs .* got \(4, 8\) and \(5, 8\)"):
        BYOLLoss()(torch.zeros(4, 8), torch.zeros(5, 8))


def test_two_ranks_equal_one_process_on_the_joined_batch() -> None:
    assert_two_ranks_equal_one_process(BYOLLoss(), 3, 5)
