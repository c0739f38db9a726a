import pytest
import torch
import torch.nn.functional as F

from imsvd.config import override
from imsvd.errors import InputError
from imsvd.losses.corinfomax import CorInfoMaxLoss
from imsvd.methods.corinfomax import CorInfoMax, CorInfoMaxSettings
from imsvd.recipes import recipe
from tests.methods.networks import SAMPLES, NormFree, views

SETTINGS = CorInfoMaxSettings(projector=(4,), invariance_weight=7.0, forgetting=0.3, epsilon=1e-3)


def build() -> CorInfoMax:
    torch.manual_seed(0)
    return CorInfoMax(SETTINGS, NormFree()).double()


def test_the_loss_is_that_of_the_projected_views_on_the_unit_sphere() -> None:
    method = build()
    pair = views()
    output = method(pair, SAMPLES)
    features = [method.backbone(view) for view in pair]
    embeddings = [F.normalize(method.projector(feature)) for feature in features]
    expected = CorInfoMaxLoss(4, 7.0, 0.3, 1e-3)(*embeddings).loss
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(output.embedding.norm(dim=1), torch.ones(8).double())
    assert torch.equal(output.features[0], features[0])
    assert not any(view.requires_grad for view in output.features)
    assert not output.embedding.requires_grad


def test_the_running_covariances_resume_exactly() -> None:
    method = build()
    method(views(seed=1), SAMPLES)
    resumed, fresh = build(), build()
    resumed.load_state_dict(method.state_dict())
    expected = method(views(seed=2), SAMPLES).loss
    assert torch.equal(resumed(views(seed=2), SAMPLES).loss, expected)
    assert torch.equal(resumed.loss.covariance, method.loss.covariance)
    assert not torch.allclose(fresh(views(seed=2), SAMPLES).loss, expected)


def test_local_views_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match="not for corinfomax"):
        override(recipe("cifar10", "corinfomax"), ["views.local_views=2", "views.local_size=16"])
