from imsvd.losses.simclr import SimCLRLoss
from imsvd.methods.simclr import SimCLR, SimCLRSettings
from tests.methods.networks import NormFree
from tests.methods.projecting import (
    assert_a_local_view_meets_both_large_ones,
    assert_loss_of_the_projected_views,
)

SETTINGS = SimCLRSettings(projector=(10, 5), temperature=0.4)


def build() -> SimCLR:
    return SimCLR(SETTINGS, NormFree()).double()


def test_the_loss_is_that_of_the_projected_views() -> None:
    assert_loss_of_the_projected_views(build(), SimCLRLoss(0.4))


def test_a_local_view_is_compared_with_both_large_ones() -> None:
    assert_a_local_view_meets_both_large_ones(build())


def test_bounds_name_the_terms() -> None:
    bounds = build().bounds(8)
    assert set(bounds) == {"ideal", "collapsed"}
    assert bounds["ideal"]["total"] < bounds["collapsed"]["total"]
