import math
from unittest import mock

import lightly.loss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd.errors import InputError
from imsvd.losses.lejepa import LeJEPALoss, Quadrature, epps_pulley
from tests.losses.parity import (
    Loss,
    assert_ranks_equal_one_process,
    embeddings,
    gradients,
    relative_error,
)
from tests.losses.slicing import directions
from tests.oracles import lejepa as oracle


@given(
    batch=st.integers(1, 5),
    width=st.integers(1, 4),
    views=st.integers(2, 4),
    slices=st.integers(1, 3),
    weight=st.sampled_from([0.0, 0.05, 1.0]),
    integral=st.sampled_from([(17, 5.0), (3, 1.0), (41, 3.0)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
def test_loss_and_gradients_equal_the_literal_equations(
    batch: int,
    width: int,
    views: int,
    slices: int,
    weight: float,
    integral: tuple[int, float],
    seed: int,
) -> None:
    inputs = embeddings(batch, width, seed, views)
    lines = directions(width, slices, seed)
    expected = oracle.loss(inputs, lines, weight, *integral)
    output = LeJEPALoss(weight, *integral)(inputs, lines)
    assert relative_error(output.loss, expected) <= 1e-10
    assert relative_error(gradients(output.loss, inputs), gradients(expected, inputs)) <= 1e-10
    assert relative_error(output.terms["prediction"], oracle.prediction(inputs)) <= 1e-10


def statistic(samples: Tensor, points: int = 17, limit: float = 5.0) -> Tensor:
    return epps_pulley(samples, Quadrature.over(points, limit, samples))


def test_the_sum_is_the_integral_in_closed_form() -> None:
    samples = embeddings(6, 1, 0)[0].detach()[:, 0]
    size = len(samples)
    differences = samples[:, None] - samples
    integral = (
        math.sqrt(2 * math.pi) * (-differences.square() / 2).exp().sum() / size**2
        - 2 * math.sqrt(math.pi) * (-samples.square() / 4).exp().sum() / size
        + math.sqrt(2 * math.pi / 3)
    )
    assert float(statistic(samples[:, None], 401, 12.0)) == pytest.approx(float(size * integral))
    assert float(statistic(samples[:, None])) == pytest.approx(float(size * integral), rel=1e-2)


def test_three_points_by_hand() -> None:
    # Only t = −1 and t = 1 count: at 0 all characteristic functions are 1.
    height = (1 - math.exp(-0.5)) ** 2 * math.exp(-0.5)
    zeros = [torch.zeros(4, 2, dtype=torch.float64)] * 2
    output = LeJEPALoss(0.5, points=3, limit=1.0)(zeros, directions(2, 5))
    assert float(output.terms["sigreg"]) == pytest.approx(4 * height)
    assert float(output.loss) == pytest.approx(0.5 * 4 * height)


def test_the_statistic_is_that_of_lightly() -> None:
    view, lines = embeddings(12, 5, 1)[0].detach().float(), directions(5, 7).float()
    theirs = lightly.loss.SIGReg(knots=9, t_max=5.0, num_vectors=7)
    with mock.patch.object(theirs, "_generate_unit_vectors", return_value=lines):
        expected = theirs(view)
    assert relative_error(statistic(view @ lines).mean(), expected) <= 1e-5


@pytest.mark.parametrize("size", [16, 256])
def test_normal_samples_of_any_number_have_the_value_of_the_bounds(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(size, 1000, generator=generator, dtype=torch.float64)
    bound = LeJEPALoss().bounds(size)["normal"]["sigreg"]
    assert float(statistic(samples).mean()) == pytest.approx(bound, rel=0.1)
    assert float(statistic(2 * samples).mean()) > 2 * bound
    assert float(statistic(samples / 2).mean()) > 2 * bound


def test_collapse_has_the_value_of_the_bounds_and_finite_gradients() -> None:
    views = [torch.zeros(6, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    loss = LeJEPALoss()
    output = loss(views, directions(3, 4))
    collapsed = loss.bounds(6)["collapsed"]
    assert float(output.loss.detach()) == pytest.approx(collapsed["total"])
    assert float(output.terms["sigreg"]) == pytest.approx(collapsed["sigreg"])
    assert gradients(output.loss, views).isfinite().all()


def test_half_precision_is_computed_in_single() -> None:
    views = [view.detach().half() for view in embeddings(6, 4, 0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = LeJEPALoss()(views, directions(4, 5).float())
    assert output.loss.dtype == torch.float32
    exact = LeJEPALoss()([view.double() for view in views], directions(4, 5)).loss
    assert relative_error(output.loss, exact) <= 1e-5


def test_bad_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"two equal \(batch, width\).* \(4, 3\) and \(4, 2\)"):
        LeJEPALoss()([torch.zeros(4, 3), torch.zeros(4, 2)], directions(3, 1))
    with pytest.raises(InputError, match="two or more views, got 1"):
        LeJEPALoss()([torch.zeros(4, 3)], directions(3, 1))


def along_lines() -> Loss:
    return lambda *views: LeJEPALoss(0.3)(views, directions(views[0].shape[1], 3))


def test_ranks_with_different_data_equal_one_process_on_the_joined_batch() -> None:
    assert_ranks_equal_one_process(along_lines, [embeddings(2, 3, 0), embeddings(8, 3, 1, views=4)])
