"""BYOL's and SimSiam's losses: the cosine of a prediction with what it predicts, on two scales."""

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NegativeCosineSimilarity

from imsvd.errors import InputError
from imsvd.losses.byol import BYOLLoss
from imsvd.losses.simsiam import SimSiamLoss
from tests.losses.comparing import (
    assert_equals_oracle,
    assert_half_precision_is_computed_in_single,
    assert_two_ranks_equal_one_process,
    embeddings,
)
from tests.losses.parity import gradients, relative_error
from tests.oracles import byol, simsiam

PredictedCosine = BYOLLoss | SimSiamLoss

both_losses = pytest.mark.parametrize("loss", [BYOLLoss(), SimSiamLoss()], ids=["byol", "simsiam"])


@pytest.mark.parametrize(("loss", "oracle"), [(BYOLLoss(), byol), (SimSiamLoss(), simsiam)])
@given(batch=st.integers(1, 6), width=st.integers(2, 6), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_equal_the_literal_equation(
    loss: PredictedCosine, oracle: ModuleType, batch: int, width: int, seed: int
) -> None:
    first, second = embeddings(batch, width, seed), embeddings(batch, width, seed + 1)
    assert_equals_oracle(loss, oracle.loss(first, second), first, second)


@pytest.mark.parametrize(("loss", "offset", "scale"), [(BYOLLoss(), 2, 2), (SimSiamLoss(), 0, 1)])
def test_lightly_gives_the_same_value_and_gradients(
    loss: PredictedCosine, offset: float, scale: float
) -> None:
    first, second = embeddings(6, 5, 0), embeddings(6, 5, 1)
    expected = offset + scale * NegativeCosineSimilarity()(first, second.detach())
    output = loss(first, second)
    assert relative_error(output.loss, expected) <= 1e-10
    wanted = gradients(expected, [first, second])
    assert relative_error(gradients(output.loss, [first, second]), wanted) <= 1e-10


@pytest.mark.parametrize(
    ("loss", "scale", "expected"),
    [
        (BYOLLoss(), 3.0, 0.0),
        (BYOLLoss(), -0.5, 4.0),
        (SimSiamLoss(), 3.0, -1.0),
        (SimSiamLoss(), -0.5, 1.0),
    ],
)
def test_value_of_equal_and_opposite_directions(
    loss: PredictedCosine, scale: float, expected: float
) -> None:
    values = embeddings(4, 3, 0).detach()
    output = loss(values, scale * values)
    assert float(output.loss) == pytest.approx(expected, abs=1e-12)
    assert float(output.terms["cosine"]) == pytest.approx(1.0 if scale > 0 else -1.0)


@both_losses
def test_what_is_predicted_gets_no_gradient(loss: PredictedCosine) -> None:
    first, second = embeddings(4, 3, 0), embeddings(4, 3, 1)
    loss(first, second).loss.backward()
    assert first.grad is not None
    assert second.grad is None


@both_losses
def test_finite_at_zero(loss: PredictedCosine) -> None:
    first = torch.zeros(3, 4, requires_grad=True)
    value = loss(first, torch.zeros(3, 4)).loss
    assert value.isfinite()
    assert gradients(value, [first]).isfinite().all()


@both_losses
def test_half_precision_is_computed_in_single(loss: PredictedCosine) -> None:
    assert_half_precision_is_computed_in_single(loss, 6, 8)


@both_losses
def test_unequal_shapes_are_refused_with_a_sentence(loss: PredictedCosine) -> None:
    name = type(loss).__name__
    with pytest.raises(InputError, match=rf"{name} needs .* got \(4, 8\) and \(5, 8\)"):
        loss(torch.zeros(4, 8), torch.zeros(5, 8))


@both_losses
def test_two_ranks_equal_one_process_on_the_joined_batch(loss: PredictedCosine) -> None:
    assert_two_ranks_equal_one_process(loss, 3, 5)
