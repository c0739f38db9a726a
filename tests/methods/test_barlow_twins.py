import pytest
import torch

from imsvd.losses.barlow_twins import BarlowTwinsLoss
from imsvd.methods.barlow_twins import BarlowTwins, BarlowTwinsSettings
from tests.methods.networks import SAMPLES, NormFree, views

SETTINGS = BarlowTwinsSettings(projector=(10,), redundancy_weight=0.02)


def build(settings: BarlowTwinsSettings = SETTINGS) -> BarlowTwins:
    torch.manual_seed(0)
    return BarlowTwins(settings, NormFree()).double()


def test_the_loss_is_that_of_the_projected_views() -> None:
    method = build()
    pair = views()
    output = method(pair, SAMPLES)
    features = [method.backbone(view) for view in pair]
    embeddings = [method.projector(feature) for feature in features]
    torch.testing.assert_close(output.loss, BarlowTwinsLoss(0.02)(*embeddings).loss)
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


def test_the_weight_reaches_its_term() -> None:
    plain = build()(views(), SAMPLES)
    output = build(SETTINGS.model_copy(update={"redundancy_weight": 3.02}))(views(), SAMPLES)
    expected = plain.loss.detach() + 3 * plain.terms["redundancy"]
    torch.testing.assert_close(output.loss.detach(), expected)


def test_a_constant_embedding_gives_the_bounds_of_collapse() -> None:
    method = build()
    constant = torch.ones(8, 10, dtype=torch.float64)
    output = method.loss(constant, constant)
    collapsed = method.bounds(8)["collapsed"]
    assert float(output.loss) == pytest.approx(collapsed.pop("total"))
    assert {name: float(term) for name, term in output.terms.items()} == pytest.approx(collapsed)
