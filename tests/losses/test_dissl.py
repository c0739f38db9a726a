import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd.errors import InputError
from imsvd.losses.base import LossOutput
from imsvd.losses.dissl import DISSLLoss
from tests.losses.parity import (
    assert_ranks_equal_one_process,
    embeddings,
    gradients,
    relative_error,
)
from tests.oracles import dissl as oracle


@given(
    batch=st.integers(1, 4),
    classes=st.integers(2, 4),
    num_students=st.integers(2, 4),
    weights=st.tuples(*[st.sampled_from([0.0, 0.8, 2.3])] * 2),
    temperatures=st.sampled_from([(0.5, 1.0), (1.0, 0.7)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_equal_the_literal_equations(
    batch: int,
    classes: int,
    num_students: int,
    weights: tuple[float, float],
    temperatures: tuple[float, float],
    seed: int,
) -> None:
    logits = embeddings(batch, classes, seed, 2 + num_students)
    teachers, students = logits[:2], logits[2:]
    expected = oracle.loss(teachers, students, *weights, temperatures)
    output = DISSLLoss(*weights, *temperatures)(teachers, students)
    assert relative_error(output.loss, expected) <= 1e-10
    actual = gradients(output.loss, logits)
    assert relative_error(actual, gradients(expected, logits)) <= 1e-10


@pytest.mark.parametrize(
    ("state", "uncertainty", "marginal"),
    [("ideal", 0.0, math.log(4)), ("uniform", math.log(4), math.log(4)), ("collapsed", 0.0, 0.0)],
)
def test_closed_form_values(state: str, uncertainty: float, marginal: float) -> None:
    logits = {
        "ideal": 1000 * torch.eye(4, dtype=torch.float64),
        "uniform": torch.zeros(4, 4, dtype=torch.float64),
        "collapsed": 1000 * torch.eye(4, dtype=torch.float64)[:1].repeat(4, 1),
    }[state].requires_grad_()
    output = DISSLLoss()([logits, logits], [logits, logits])
    assert float(output.terms["distillation"]) == pytest.approx(uncertainty, abs=1e-12)
    assert float(output.terms["invariance"]) == pytest.approx(uncertainty, abs=1e-12)
    assert float(output.terms["marginal_entropy"]) == pytest.approx(marginal, abs=1e-12)
    expected = 1.8 * uncertainty - 2.3 * marginal
    assert float(output.loss.detach()) == pytest.approx(expected, abs=1e-12)
    assert gradients(output.loss, [logits]).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    logits = [view.detach().to(dtype).requires_grad_() for view in embeddings(6, 4, 0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = DISSLLoss()(logits, logits)
    assert output.loss.dtype == torch.float32
    exact = [view.detach().double() for view in logits]
    assert relative_error(output.loss, DISSLLoss()(exact, exact).loss) <= 1e-5


def test_bad_shapes_and_numbers_of_views_are_refused_with_a_sentence() -> None:
    view, other = torch.zeros(4, 3), torch.zeros(4, 2)
    for teachers, students in [([view], [view]), ([view, view], [view]), ([view] * 2, [other] * 2)]:
        with pytest.raises(InputError, match="two or more views"):
            DISSLLoss()(teachers, students)


class FourLogits:
    """Two views of a teacher and two of a student as four arguments."""

    def __call__(self, *logits: Tensor) -> LossOutput:
        output: LossOutput = DISSLLoss()(logits[:2], logits[2:])
        return output


def test_ranks_with_different_data_equal_one_process_on_the_joined_batch() -> None:
    assert_ranks_equal_one_process(FourLogits, [embeddings(2, 3, 0, 4), embeddings(8, 5, 1, 4)])
