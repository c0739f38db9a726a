from functools import partial
from unittest import mock

import lightly.loss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.errors import InputError
from imsvd.losses.visreg import VISRegLoss
from tests.losses.parity import (
    Loss,
    assert_ranks_equal_one_process,
    embeddings,
    gradients,
    relative_error,
)
from tests.losses.slicing import directions
from tests.oracles import visreg as oracle


@given(
    batch=st.integers(2, 5),
    width=st.integers(1, 3),
    views=st.integers(2, 3),
    slices=st.integers(1, 3),
    weight=st.sampled_from([0.0, 0.6, 1.0]),
    parts=st.tuples(*[st.sampled_from([0.0, 1.0, 2.5])] * 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
def test_loss_and_gradients_equal_the_literal_equations(
    batch: int,
    width: int,
    views: int,
    slices: int,
    weight: float,
    parts: tuple[float, float, float],
    seed: int,
) -> None:
    inputs = embeddings(batch, width, seed, views)
    lines = directions(width, slices, seed)
    expected = oracle.loss(inputs, lines, weight, parts)
    output = VISRegLoss(weight, *parts)(inputs, lines)
    assert relative_error(output.loss, expected) <= 1e-10
    assert relative_error(gradients(output.loss, inputs), gradients(expected, inputs)) <= 1e-10


def test_agrees_with_lightly() -> None:
    inputs, drawn = embeddings(9, 5, 2, views=3), 3 * directions(5, 6)
    theirs = lightly.loss.VISRegLoss(num_slices=6, eps=1e-12)
    with mock.patch.object(torch, "randn", return_value=drawn):
        expected = theirs.forward_components(
            global_proj=torch.stack(inputs[:2]), local_proj=torch.stack(inputs[2:])
        )
    output = VISRegLoss()(inputs, drawn / 3)
    for name, term in output.terms.items():
        value = getattr(expected, "pred" if name == "prediction" else name)
        assert relative_error(term, value) <= 1e-6, name
    assert relative_error(output.loss, expected.total) <= 1e-6
    wanted = gradients(expected.total, inputs)
    assert relative_error(gradients(output.loss, inputs), wanted) <= 1e-6


def test_two_samples_by_hand() -> None:
    # Means 1, deviations 2, standardized −1 and 1; the normal quantiles of 1/3 and 2/3 are ∓0.4307.
    view = torch.tensor([[-1.0], [3.0]], dtype=torch.float64)
    terms = VISRegLoss()([view, view], torch.ones(1, 1, dtype=torch.float64)).terms
    by_hand = {"prediction": 0.0, "scale": 1.0, "shape": (1 - 0.4307273) ** 2, "center": 1.0}
    assert {name: float(term) for name, term in terms.items()} == pytest.approx(by_hand)


def test_collapse_has_the_value_of_the_bounds_and_finite_gradients() -> None:
    views = [torch.zeros(6, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    loss = VISRegLoss(0.6)
    output = loss(views, directions(3, 4))
    collapsed = loss.bounds(6)["collapsed"]
    assert float(output.loss.detach()) == pytest.approx(collapsed.pop("total"))
    assert {name: float(term) for name, term in output.terms.items()} == pytest.approx(collapsed)
    assert gradients(output.loss, views).isfinite().all()


def test_the_scale_pulls_a_collapsing_network_apart_with_constant_force() -> None:
    spread = embeddings(8, 3, 0)[0].detach()
    forces = []
    for size in (1e-2, 1e-4):
        view = (size * spread).requires_grad_()
        only_scale = VISRegLoss(1.0, 1.0, 0.0, 0.0)([view, view], directions(3, 4))
        forces.append(gradients(only_scale.loss, [view]).norm())
    assert float(forces[1] / forces[0]) == pytest.approx(1, abs=0.1)


def test_half_precision_is_computed_in_single() -> None:
    views = [view.detach().half() for view in embeddings(6, 4, 0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = VISRegLoss()(views, directions(4, 5).float())
    assert output.loss.dtype == torch.float32
    exact = VISRegLoss()([view.double() for view in views], directions(4, 5)).loss
    assert relative_error(output.loss, exact) <= 1e-5


def test_a_single_sample_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"VISRegLoss needs .* at least 2 samples, got \(1, 3\)"):
        VISRegLoss()([torch.zeros(1, 3)] * 2, directions(3, 1))


def along_lines(count: int) -> Loss:
    return lambda *views: VISRegLoss(0.6)(views, directions(views[0].shape[1], count))


@pytest.mark.parametrize("count", [1, 5])  # one rank has no line, or one more than the other
def test_ranks_with_different_data_equal_one_process_on_the_joined_batch(count: int) -> None:
    cases = [embeddings(2, 3, 0), embeddings(8, 3, 1, views=3)]
    assert_ranks_equal_one_process(partial(along_lines, count), cases)
