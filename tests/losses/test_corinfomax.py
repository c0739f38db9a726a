import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd.errors import InputError
from imsvd.losses.base import LossOutput
from imsvd.losses.corinfomax import CorInfoMaxLoss, log_determinant
from tests.losses.parity import (
    assert_ranks_equal_one_process,
    embeddings,
    gradients,
    relative_error,
)
from tests.oracles import corinfomax as oracle


@given(
    batch=st.integers(2, 6),
    width=st.integers(1, 4),
    invariance_weight=st.sampled_from([0.0, 250.0]),
    forgetting=st.sampled_from([0.01, 0.1, 0.7]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_three_steps_equal_the_literal_equations(
    batch: int, width: int, invariance_weight: float, forgetting: float, seed: int
) -> None:
    loss = CorInfoMaxLoss(width, invariance_weight, forgetting)
    memories = oracle.Memory(width), oracle.Memory(width)
    for step in range(3):
        views = embeddings(batch, width, seed + step)
        expected = oracle.loss(
            views[0],
            views[1],
            memories,
            invariance_weight=invariance_weight,
            forgetting=forgetting,
        )
        output = loss(*views)
        assert relative_error(output.loss, expected) <= 1e-10
        actual, wanted = gradients(output.loss, views), gradients(expected, views)
        # Few samples make R nearly singular, and its inverse as inexact in both forms.
        assert relative_error(actual, wanted) <= (1e-10 if batch > width else 1e-7)
        for view, memory in enumerate(memories):
            torch.testing.assert_close(loss.mean[view], memory.mean)
            torch.testing.assert_close(loss.covariance[view], memory.covariance)


def test_what_has_no_volume_is_refused_and_what_is_no_number_is_none() -> None:
    with pytest.raises(InputError, match=r"singular .* raise method\.epsilon"):
        log_determinant(torch.ones(2, 2))
    broken = CorInfoMaxLoss(2)(torch.full((4, 2), torch.nan), torch.randn(4, 2))
    assert broken.loss.isnan()


def test_an_embedding_of_unit_covariance_has_no_volume_to_gain() -> None:
    # Columns of a Hadamard matrix: mean 0, covariance 1, which is where R starts.
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    view = torch.kron(signs, signs)[:, 1:]
    output = CorInfoMaxLoss(3)(view, view)
    assert float(output.terms["log_volume"]) == pytest.approx(0, abs=1e-7)
    assert float(output.terms["invariance"]) == 0


def test_collapse_shrinks_the_volume_to_what_is_remembered() -> None:
    view = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    output = CorInfoMaxLoss(3, forgetting=0.1)(view, view)
    assert float(output.terms["log_volume"]) == pytest.approx(2 * math.log(0.1), abs=1e-6)
    assert gradients(output.loss, [view]).isfinite().all()


def test_evaluation_leaves_the_memory_alone() -> None:
    loss = CorInfoMaxLoss(3).eval()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    loss(*embeddings(5, 3, 0))
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_determinants_of_lower_precision_are_computed_in_double(dtype: torch.dtype) -> None:
    views = [view.detach().to(dtype).requires_grad_() for view in embeddings(6, 4, 0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = CorInfoMaxLoss(4)(*views)
    exact = CorInfoMaxLoss(4)(*(view.detach().double() for view in views))
    assert output.terms["log_volume"].dtype == torch.float64
    assert relative_error(output.terms["log_volume"], exact.terms["log_volume"]) <= 1e-12
    assert relative_error(output.loss, exact.loss) <= 1e-6
    assert all(gradient.dtype == dtype for gradient in torch.autograd.grad(output.loss, views))


def test_bad_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"CorInfoMaxLoss .* got \(4, 3\) and \(5, 3\)"):
        CorInfoMaxLoss(3)(torch.zeros(4, 3), torch.zeros(5, 3))


class SecondStep:
    """The loss after a step that every rank has taken with the same samples."""

    def __init__(self, width: int) -> None:
        self.loss = CorInfoMaxLoss(width, 250.0, 0.3)

    def __call__(self, first: Tensor, second: Tensor) -> LossOutput:
        self.loss(*(view.detach() for view in embeddings(6, first.shape[1], 5)))
        output: LossOutput = self.loss(first, second)
        return output


def test_ranks_with_different_data_equal_one_process_on_the_joined_batch() -> None:
    cases = [embeddings(8, 3, 0), embeddings(12, 3, 1)]
    assert_ranks_equal_one_process(functools.partial(SecondStep, 3), cases)
