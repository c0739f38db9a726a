import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NTXentLoss

from imsvd.errors import InputError
from imsvd.losses.simclr import SimCLRLoss
from tests.losses.comparing import (
    assert_equals_oracle,
    assert_half_precision_is_computed_in_single,
    assert_two_ranks_equal_one_process,
    embeddings,
)
from tests.losses.parity import gradients, relative_error
from tests.oracles import simclr as oracle


@given(
    batch=st.integers(1, 5),
    width=st.integers(2, 6),
    temperature=st.sampled_from([0.1, 0.5, 2.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_equal_the_literal_equation(
    batch: int, width: int, temperature: float, seed: int
) -> None:
    first, second = embeddings(batch, width, seed), embeddings(batch, width, seed + 1)
    expected = oracle.loss(first, second, temperature)
    assert_equals_oracle(SimCLRLoss(temperature), expected, first, second)


def test_lightly_gives_the_same_value_and_gradients() -> None:
    first, second = embeddings(6, 5, 0), embeddings(6, 5, 1)
    expected = NTXentLoss(temperature=0.2)(first, second)
    output = SimCLRLoss(0.2)(first, second)
    assert relative_error(output.loss, expected) <= 1e-10
    wanted = gradients(expected, [first, second])
    assert relative_error(gradients(output.loss, [first, second]), wanted) <= 1e-10


def test_terms_add_up_to_the_loss() -> None:
    output = SimCLRLoss()(embeddings(4, 3, 0), embeddings(4, 3, 1))
    assert tuple(output.terms) == ("attraction", "repulsion")
    assert not any(term.requires_grad for term in output.terms.values())
    torch.testing.assert_close(output.loss.detach(), sum(output.terms.values()))


def test_bounds_are_reached_by_a_simplex_and_by_collapse() -> None:
    loss = SimCLRLoss(0.3)
    # The corners of a tetrahedron: four directions with all cosines -1/3.
    corners = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]).double()
    cases = {"ideal": corners, "collapsed": torch.ones(4, 3, dtype=torch.float64)}
    for name, values in cases.items():
        output = loss(values, 2 * values)
        row = loss.bounds(4)[name]
        assert float(output.loss) == pytest.approx(row["total"], abs=1e-12)
        for term, value in output.terms.items():
            assert float(value) == pytest.approx(row[term], abs=1e-12)
    assert loss.bounds(4)["collapsed"]["total"] == pytest.approx(math.log(7))


def test_no_overflow_at_a_low_temperature() -> None:
    first = torch.randn(4, 3).requires_grad_()
    loss = SimCLRLoss(0.001)(first, first.detach()).loss
    assert loss.isfinite()
    assert gradients(loss, [first]).isfinite().all()


def test_half_precision_is_computed_in_single() -> None:
    assert_half_precision_is_computed_in_single(SimCLRLoss(), 6, 8)


def test_unequal_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"SimCLRLoss needs .* got \(4, 8\) and \(5, 8\)"):
        SimCLRLoss()(torch.zeros(4, 8), torch.zeros(5, 8))


def test_two_ranks_equal_one_process_on_the_joined_batch() -> None:
    assert_two_ranks_equal_one_process(SimCLRLoss(0.5), 3, 5)
