import lightly.loss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.errors import InputError
from imsvd.losses.vicreg import VICRegLoss
from tests.losses.parity import (
    assert_ranks_equal_one_process,
    embeddings,
    gradients,
    relative_error,
)
from tests.oracles import vicreg as oracle


@given(
    batch=st.integers(2, 6),
    width=st.integers(1, 6),
    weights=st.tuples(*[st.sampled_from([0.0, 1.0, 25.0])] * 3),
    scale=st.sampled_from([0.1, 1.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_loss_and_gradients_equal_the_literal_equations(
    batch: int, width: int, weights: tuple[float, float, float], scale: float, seed: int
) -> None:
    views = [(scale * view).detach().requires_grad_() for view in embeddings(batch, width, seed)]
    expected = oracle.loss(views[0], views[1], weights=weights)
    output = VICRegLoss(*weights)(*views)
    assert relative_error(output.loss, expected) <= 1e-10
    actual = gradients(output.loss, views)
    assert relative_error(actual, gradients(expected, views)) <= 1e-10
    covariance = oracle.covariance(views[0]) + oracle.covariance(views[1])
    assert relative_error(output.terms["covariance"], covariance) <= 1e-10


# More samples than components, and fewer: two ways to the same number.
@pytest.mark.parametrize(("batch", "width"), [(24, 7), (7, 24)])
def test_agrees_with_lightly(batch: int, width: int) -> None:
    views = embeddings(batch, width, 3)
    expected = lightly.loss.VICRegLoss()(*views)
    output = VICRegLoss()(*views)
    assert relative_error(output.loss, expected) <= 1e-10
    actual = gradients(output.loss, views)
    assert relative_error(actual, gradients(expected, views)) <= 1e-10


def test_collapse_costs_the_whole_hinge_and_has_finite_gradients() -> None:
    views = [torch.full((5, 3), 2.0, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    output = VICRegLoss()(*views)
    assert float(output.loss.detach()) == pytest.approx(25 * (1 - 1e-2))
    assert gradients(output.loss, views).isfinite().all()


def test_uncorrelated_unit_components_cost_nothing() -> None:
    # The columns of a Hadamard matrix but the constant one, with a variance of 8/7 > 1.
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    hadamard = torch.kron(torch.kron(signs, signs), signs)[:, 1:]
    assert float(VICRegLoss()(hadamard, hadamard).loss) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    views = [view.detach().to(dtype).requires_grad_() for view in embeddings(6, 4, 0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = VICRegLoss()(*views)
    assert output.loss.dtype == torch.float32
    exact = VICRegLoss()(*(view.detach().double() for view in views)).loss
    assert relative_error(output.loss, exact) <= 1e-5


def test_bad_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"at least 2 samples, got \(4, 3\) and \(4, 2\)"):
        VICRegLoss()(torch.zeros(4, 3), torch.zeros(4, 2))
    with pytest.raises(InputError, match="at least 2 samples"):
        VICRegLoss()(torch.zeros(1, 3), torch.zeros(1, 3))


def test_ranks_with_different_data_equal_one_process_on_the_joined_batch() -> None:
    cases = [embeddings(2, 3, 0), embeddings(8, 3, 1), embeddings(8, 12, 2)]
    assert_ranks_equal_one_process(VICRegLoss, cases)
