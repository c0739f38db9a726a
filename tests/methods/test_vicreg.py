import pytest
import torch

from imsvd.losses.vicreg import VICRegLoss
from imsvd.methods.vicreg import VICReg, VICRegSettings
from tests.methods.networks import SAMPLES, NormFree, views

SETTINGS = VICRegSettings(projector=(10,), covariance_weight=2.0)


def build(settings: VICRegSettings = SETTINGS) -> VICReg:
    torch.manual_seed(0)
    return VICReg(settings, NormFree()).double()


def test_the_loss_is_that_of_the_projected_views() -> None:
    method = build()
    pair = views()
    output = method(pair, SAMPLES)
    features = [method.backbone(view) for view in pair]
    embeddings = [method.projector(feature) for feature in features]
    torch.testing.assert_close(output.loss, VICRegLoss(25, 25, 2)(*embeddings).loss)
    assert torch.equal(output.features, features[0])
    assert torch.equal(output.embedding, embeddings[0])
    assert not output.features.requires_grad
    assert not output.embedding.requires_grad


def test_a_local_view_is_compared_with_both_large_ones() -> None:
    method = build()
    first, second, local = views(3)
    pairs = [(first, second), (first, local), (second, local)]
    parts = [method(list(pair), SAMPLES) for pair in pairs]
    output = method([first, second, local], SAMPLES)
    torch.testing.assert_close(output.loss, torch.stack([part.loss for part in parts]).mean())
    for name, term in output.terms.items():
        torch.testing.assert_close(term, torch.stack([part.terms[name] for part in parts]).mean())


@pytest.mark.parametrize("name", ["invariance", "variance", "covariance"])
def test_every_weight_reaches_its_term(name: str) -> None:
    plain = build()(views(), SAMPLES)
    weight = f"{name}_weight"
    raised = SETTINGS.model_copy(update={weight: getattr(SETTINGS, weight) + 3})
    output = build(raised)(views(), SAMPLES)
    torch.testing.assert_close(output.loss.detach(), plain.loss.detach() + 3 * plain.terms[name])


def test_a_constant_embedding_gives_the_bounds_of_collapse() -> None:
    method = build()
    constant = torch.ones(8, 10, dtype=torch.float64)
    output = method.loss(constant, constant)
    collapsed = method.bounds(8)["collapsed"]
    assert float(output.loss) == pytest.approx(collapsed.pop("total"))
    assert {name: float(term) for name, term in output.terms.items()} == pytest.approx(collapsed)
