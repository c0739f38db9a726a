import functools

import lightly.loss.wmse_loss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.errors import InputError
from imsvd.losses.wmse import WMSELoss, whiten
from tests.losses.parity import (
    assert_ranks_equal_one_process,
    embeddings,
    gradients,
    relative_error,
)
from tests.oracles import wmse as oracle


@given(
    width=st.integers(1, 3),
    num_parts=st.integers(1, 2),
    iterations=st.integers(1, 2),
    num_views=st.integers(2, 3),
    shrinkage=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_loss_and_gradients_equal_the_literal_equations(
    width: int, num_parts: int, iterations: int, num_views: int, shrinkage: float, seed: int
) -> None:
    size = 2 * width + 2
    views = embeddings(size * num_parts, width, seed, num_views)
    loss = WMSELoss(size, iterations, shrinkage)
    parts = loss.sub_batches(size * num_parts)
    expected = oracle.loss(views, parts, shrinkage)
    output = loss(*views)
    assert relative_error(output.loss, expected) <= 1e-10
    actual = gradients(output.loss, views)
    assert relative_error(actual, gradients(expected, views)) <= 1e-10


def test_agrees_with_lightly_on_a_single_sub_batch() -> None:
    # One sub-batch: its order, and so lightly's own permutation, does not matter.
    views = embeddings(12, 4, 0)
    reference = lightly.loss.wmse_loss.WMSELoss(
        embedding_dim=4, w_size=12, w_iter=1, track_running_stats=False
    )
    expected = reference(torch.cat(views))
    output = WMSELoss(12, iterations=1)(*views)
    assert relative_error(output.loss, expected) <= 1e-10
    actual = gradients(output.loss, views)
    assert relative_error(actual, gradients(expected, views)) <= 1e-10


def test_whitened_sub_batches_have_mean_zero_and_unit_covariance() -> None:
    values = torch.stack(embeddings(9, 4, 0)).detach()
    for part in whiten(values):
        torch.testing.assert_close(part.mean(0), torch.zeros(4).double())
        torch.testing.assert_close(part.T.cov(), torch.eye(4).double())


def test_equal_views_cost_nothing_and_opposite_ones_four() -> None:
    (view, _) = embeddings(8, 3, 0)
    assert float(WMSELoss(8)(view, view).loss.detach()) == pytest.approx(0, abs=1e-12)
    assert float(WMSELoss(8)(view, -view).loss.detach()) == pytest.approx(4)


def test_every_call_divides_the_whole_batch_anew() -> None:
    loss = WMSELoss(4, iterations=2)
    first = loss.sub_batches(12)
    for division in first.view(2, -1):
        assert sorted(division.tolist()) == list(range(12))
    assert not torch.equal(first[:3], first[3:])
    assert torch.equal(first, loss.sub_batches(12))  # drawing alone does not move on
    loss(*embeddings(12, 2, 0))
    assert not torch.equal(first, loss.sub_batches(12))
    loss.eval()(*embeddings(12, 2, 0))
    assert int(loss.calls) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    views = [view.detach().to(dtype).requires_grad_() for view in embeddings(12, 3, 0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = WMSELoss(12)(*views)
    assert output.loss.dtype == torch.float32
    exact = WMSELoss(12)(*(view.detach().double() for view in views)).loss
    assert relative_error(output.loss, exact) <= 1e-5


def test_what_cannot_be_whitened_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"whitening_size=8 does not divide the batch of 12"):
        WMSELoss(8)(*embeddings(12, 2, 0))
    with pytest.raises(InputError, match="two or more equal"):
        WMSELoss(8)(torch.zeros(8, 2), torch.zeros(8, 3))
    with pytest.raises(InputError, match=r"collapsed; raise method\.shrinkage"):
        WMSELoss(8)(torch.ones(8, 2), torch.ones(8, 2))
    # What is no number is no collapse; training says what it is.
    assert WMSELoss(8)(torch.full((8, 2), torch.nan), torch.randn(8, 2)).loss.isnan()
    shrunk = WMSELoss(8, shrinkage=0.1)(torch.ones(8, 2), torch.ones(8, 2))
    assert shrunk.loss.isfinite()


def test_ranks_with_different_data_equal_one_process_on_the_joined_batch() -> None:
    cases = [embeddings(12, 2, 0), embeddings(12, 2, 1, views=3)]
    assert_ranks_equal_one_process(functools.partial(WMSELoss, 6, 2), cases)
