"""LeJEPA and VISReg: the methods around losses that look along random lines."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from imsvd.losses.lejepa import LeJEPALoss
from imsvd.losses.visreg import VISRegLoss
from imsvd.methods.lejepa import LeJEPA, LeJEPASettings
from imsvd.methods.slicing import RandomDirections, SlicedMethod
from imsvd.methods.visreg import VISReg, VISRegSettings
from tests import gloo
from tests.methods import remembering
from tests.methods.networks import SAMPLES, NormFree, views

WIDTH = 5
LEJEPA = LeJEPASettings(
    projector=(WIDTH,),
    regularization_weight=0.3,
    num_slices=3,
    integration_points=9,
    integration_limit=2.0,
)
VISREG = VISRegSettings(
    projector=(WIDTH,),
    regularization_weight=0.3,
    scale_weight=2.0,
    shape_weight=3.0,
    center_weight=0.5,
    num_slices=3,
)


def build_lejepa() -> LeJEPA:
    torch.manual_seed(0)
    return LeJEPA(LEJEPA, NormFree()).double()


def build_visreg() -> VISReg:
    torch.manual_seed(0)
    return VISReg(VISREG, NormFree()).double()


BUILDS = [build_lejepa, build_visreg]
EXPECTED = {LeJEPA: LeJEPALoss(0.3, 9, 2.0), VISReg: VISRegLoss(0.3, 2.0, 3.0, 0.5)}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("build", BUILDS)
def test_the_loss_is_that_of_all_views_along_the_directions(build: Any, count: int) -> None:
    method: SlicedMethod = build()
    images = views(count)
    output = method(images, SAMPLES)
    features, embeddings = method.project(images)
    loss: Any = EXPECTED[type(method)]
    expected = loss(embeddings, method.directions())
    torch.testing.assert_close(output.loss, expected.loss)
    assert torch.equal(output.features[1], features[1])
    assert torch.equal(output.embedding, embeddings[0])
    assert not any(view.requires_grad for view in (*output.features, output.embedding))


def test_directions_are_unit_vectors_that_change_from_step_to_step() -> None:
    draw = RandomDirections(6, 400)
    first = draw()
    torch.testing.assert_close(first.norm(dim=0), torch.ones(400))
    assert float(first.mean(dim=1).abs().max()) < 0.1  # in all directions
    assert torch.equal(first, draw())  # whatever else was drawn
    draw.advance()
    assert not torch.equal(first, draw())


def test_a_loaded_counter_continues_with_its_directions() -> None:
    draw, other = RandomDirections(3, 2), RandomDirections(3, 2)
    for _ in range(2):
        draw.advance()
    other()
    other.load_state_dict(draw.state_dict())
    assert torch.equal(other(), draw())
    for each in (draw, other):
        each.advance()
    assert torch.equal(other(), draw())
    assert int(other.steps) == 3


def train_both() -> list[dict[str, Any]]:
    return [remembering.trained(build, [0, 1]) for build in BUILDS]


def test_two_processes_train_as_one() -> None:
    expected = train_both()
    for results in gloo.run(2, train_both):
        for result, whole in zip(results, expected, strict=True):
            remembering.assert_equal_training(result, whole)


def test_an_even_number_of_points_is_refused() -> None:
    with pytest.raises(ValidationError, match="integration_points=4 must be odd"):
        LeJEPASettings(integration_points=4)
