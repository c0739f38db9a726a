import torch

from imsvd.losses.simclr import SimCLRLoss
from imsvd.methods.simclr import SimCLR, SimCLRSettings
from tests.methods.networks import SAMPLES, NormFree, views

SETTINGS = SimCLRSettings(projector=(10, 5), temperature=0.4)


def build() -> SimCLR:
    return SimCLR(SETTINGS, NormFree()).double()


def test_the_loss_is_that_of_the_projected_views() -> None:
    method = build()
    pair = views()
    output = method(pair, SAMPLES)
    features = [method.backbone(view) for view in pair]
    embeddings = [method.projector(feature) for feature in features]
    torch.testing.assert_close(output.loss, SimCLRLoss(0.4)(*embeddings).loss)
    assert torch.equal(output.features, features[0])
    assert torch.equal(output.embedding, embeddings[0])
    assert not output.features.requires_grad
    assert not output.embedding.requires_grad


def test_local_views_are_compared_with_both_large_ones() -> None:
    method = build()
    every = views(count=3)
    z = [method.projector(method.backbone(view)) for view in every]
    loss = SimCLRLoss(0.4)
    expected = (loss(z[0], z[1]).loss + loss(z[0], z[2]).loss + loss(z[1], z[2]).loss) / 3
    torch.testing.assert_close(method(every, SAMPLES).loss, expected)


def test_bounds_name_the_terms() -> None:
    bounds = build().bounds(8)
    assert set(bounds) == {"ideal", "collapsed"}
    assert bounds["ideal"]["total"] < bounds["collapsed"]["total"]
