import pytest
import torch

from imsvd.config import override
from imsvd.errors import InputError
from imsvd.losses.wmse import WMSELoss
from imsvd.methods.wmse import WMSE, WMSESettings
from imsvd.recipes import recipe
from tests.methods.networks import SAMPLES, NormFree, views
from tests.methods.projecting import assert_loss_of_the_projected_views

SETTINGS = WMSESettings(projector=(2,), whitening_size=4, iterations=2, shrinkage=0.01)


def build() -> WMSE:
    torch.manual_seed(0)
    return WMSE(SETTINGS, NormFree()).double()


@pytest.mark.parametrize("count", [2, 4])
def test_the_loss_is_that_of_the_projected_views(count: int) -> None:
    assert_loss_of_the_projected_views(build(), WMSELoss(4, 2, 0.01), count)


def test_the_draw_of_sub_batches_resumes_exactly() -> None:
    method = build()
    first = method(views(), SAMPLES).loss
    resumed = build()
    resumed.load_state_dict(method.state_dict())
    second = method(views(), SAMPLES).loss
    assert torch.equal(resumed(views(), SAMPLES).loss, second)
    assert not torch.allclose(first, second)  # other sub-batches


def test_a_sub_batch_too_small_for_the_embedding_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"whitening_size=100 is too small .* at least 128"):
        override(recipe("cifar10", "wmse"), ["method.whitening_size=100"])
