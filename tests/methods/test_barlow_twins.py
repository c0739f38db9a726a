import torch

from imsvd.losses.barlow_twins import BarlowTwinsLoss
from imsvd.methods.barlow_twins import BarlowTwins, BarlowTwinsSettings
from tests.methods.networks import SAMPLES, NormFree, views
from tests.methods.projecting import (
    assert_a_constant_gives_the_bounds_of_collapse,
    assert_a_local_view_meets_both_large_ones,
    assert_loss_of_the_projected_views,
)

SETTINGS = BarlowTwinsSettings(projector=(10,), redundancy_weight=0.02)


def build(settings: BarlowTwinsSettings = SETTINGS) -> BarlowTwins:
    torch.manual_seed(0)
    return BarlowTwins(settings, NormFree()).double()


def test_the_loss_is_that_of_the_projected_views() -> None:
    assert_loss_of_the_projected_views(build(), BarlowTwinsLoss(0.02))


def test_a_local_view_is_compared_with_both_large_ones() -> None:
    assert_a_local_view_meets_both_large_ones(build())


def test_the_weight_reaches_its_term() -> None:
    plain = build()(views(), SAMPLES)
    output = build(SETTINGS.model_copy(update={"redundancy_weight": 3.02}))(views(), SAMPLES)
    expected = plain.loss.detach() + 3 * plain.terms["redundancy"]
    torch.testing.assert_close(output.loss.detach(), expected)


def test_a_constant_embedding_gives_the_bounds_of_collapse() -> None:
    assert_a_constant_gives_the_bounds_of_collapse(build(), width=10)
