import lightly.loss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.errors import InputError
from imsvd.losses.barlow_twins import BarlowTwinsLoss, standardize
from tests.losses.parity import (
    assert_ranks_equal_one_process,
    embeddings,
    gradients,
    relative_error,
)
from tests.oracles import barlow_twins as oracle


@given(
    batch=st.integers(2, 6),
    width=st.integers(1, 5),
    redundancy_weight=st.sampled_from([0.0, 0.0051, 1.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_equal_the_literal_equations(
    batch: int, width: int, redundancy_weight: float, seed: int
) -> None:
    views = embeddings(batch, width, seed)
    expected = oracle.loss(views[0], views[1], redundancy_weight=redundancy_weight)
    output = BarlowTwinsLoss(redundancy_weight)(*views)
    assert relative_error(output.loss, expected) <= 1e-10
    actual = gradients(output.loss, views)
    assert relative_error(actual, gradients(expected, views)) <= 1e-10


# More samples than components, and fewer: two ways to the same number.
@pytest.mark.parametrize(("batch", "width"), [(24, 7), (7, 24)])
def test_agrees_with_lightly(batch: int, width: int) -> None:
    views = embeddings(batch, width, 3)
    expected = lightly.loss.BarlowTwinsLoss(lambda_param=0.0051)(*views)
    output = BarlowTwinsLoss()(*views)
    assert relative_error(output.loss, expected) <= 1e-10
    actual = gradients(output.loss, views)
    assert relative_error(actual, gradients(expected, views)) <= 1e-10


def test_standardized_components_have_mean_zero_and_variance_one() -> None:
    (view, _) = embeddings(50, 4, 0)
    result = standardize(view)
    torch.testing.assert_close(result.mean(0), torch.zeros(4).double())
    torch.testing.assert_close(
        result.var(0, correction=0), torch.ones(4).double(), rtol=1e-4, atol=0
    )


def test_the_terms_are_the_two_sums_of_the_equation() -> None:
    views = embeddings(6, 4, 0)
    terms = BarlowTwinsLoss(0.3)(*views).terms
    invariance = oracle.loss(views[0], views[1], redundancy_weight=0)
    redundancy = oracle.loss(views[0], views[1], redundancy_weight=1) - invariance
    assert relative_error(terms["invariance"], invariance) <= 1e-10
    assert relative_error(terms["redundancy"], redundancy) <= 1e-10


def test_collapse_costs_the_width_and_has_finite_gradients() -> None:
    views = [torch.full((5, 3), 2.0, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    output = BarlowTwinsLoss()(*views)
    assert float(output.loss.detach()) == pytest.approx(3)
    assert gradients(output.loss, views).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    views = [view.detach().to(dtype).requires_grad_() for view in embeddings(6, 4, 0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = BarlowTwinsLoss()(*views)
    assert output.loss.dtype == torch.float32
    exact = BarlowTwinsLoss()(*(view.detach().double() for view in views)).loss
    assert relative_error(output.loss, exact) <= 1e-5


def test_bad_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"BarlowTwinsLoss .* got \(4, 3\) and \(5, 3\)"):
        BarlowTwinsLoss()(torch.zeros(4, 3), torch.zeros(5, 3))


def test_ranks_with_different_data_equal_one_process_on_the_joined_batch() -> None:
    cases = [embeddings(4, 3, 0), embeddings(8, 3, 1), embeddings(8, 12, 2)]
    assert_ranks_equal_one_process(BarlowTwinsLoss, cases)
