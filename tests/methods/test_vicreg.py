import pytest
import torch

from imsvd.losses.vicreg import VICRegLoss
from imsvd.methods.vicreg import VICReg, VICRegSettings
from tests.methods.networks import SAMPLES, NormFree, views
from tests.methods.projecting import (
    assert_a_constant_gives_the_bounds_of_collapse,
    assert_a_local_view_meets_both_large_ones,
    assert_loss_of_the_projected_views,
)

SETTINGS = VICRegSettings(projector=(10,), covariance_weight=2.0)


def build(settings: VICRegSettings = SETTINGS) -> VICReg:
    torch.manual_seed(0)
    return VICReg(settings, NormFree()).double()


def test_the_loss_is_that_of_the_projected_views() -> None:
    assert_loss_of_the_projected_views(build(), VICRegLoss(25, 25, 2))


def test_a_local_view_is_compared_with_both_large_ones() -> None:
    assert_a_local_view_meets_both_large_ones(build())


@pytest.mark.parametrize("name", ["invariance", "variance", "covariance"])
def test_every_weight_reaches_its_term(name: str) -> None:
    plain = build()(views(), SAMPLES)
    weight = f"{name}_weight"
    raised = SETTINGS.model_copy(update={weight: getattr(SETTINGS, weight) + 3})
    output = build(raised)(views(), SAMPLES)
    torch.testing.assert_close(output.loss.detach(), plain.loss.detach() + 3 * plain.terms[name])


def test_a_constant_embedding_gives_the_bounds_of_collapse() -> None:
    assert_a_constant_gives_the_bounds_of_collapse(build(), width=10)
