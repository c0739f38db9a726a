import torch
from torch import nn

from imsvd.config import override
from imsvd.losses.simsiam import SimSiamLoss
from imsvd.methods.simsiam import SimSiam, SimSiamSettings
from imsvd.pretraining.optimizers import build_optimizer, set_learning_rate
from imsvd.recipes import recipe
from tests.methods.networks import SAMPLES, NormFree, views

SETTINGS = SimSiamSettings(projector=(10, 5), predictor=7)


def build() -> SimSiam:
    return SimSiam(SETTINGS, NormFree()).double()


def test_the_loss_averages_both_directions() -> None:
    method = build()
    pair = views()
    z = [method.projector(method.backbone(view)) for view in pair]
    p = [method.predictor(value) for value in z]
    loss = SimSiamLoss()
    output = method(pair, SAMPLES)
    expected = (loss(p[0], z[1]).loss + loss(p[1], z[0]).loss) / 2
    torch.testing.assert_close(output.loss, expected)
    assert torch.equal(output.embedding, z[0])
    assert torch.equal(output.features[0], method.backbone(pair[0]))


def test_no_gradient_flows_through_what_is_predicted() -> None:
    method = build()
    pair = views()
    method(pair, SAMPLES).loss.backward()
    actual = [parameter.grad for parameter in method.backbone.parameters()]
    method.zero_grad()
    z = [method.projector(method.backbone(view)) for view in pair]
    p = [method.predictor(value) for value in z]
    constants = [value.detach().clone() for value in z]
    cosine = nn.CosineSimilarity()
    loss = -(cosine(p[0], constants[1]).mean() + cosine(p[1], constants[0]).mean()) / 2
    loss.backward()
    expected = [parameter.grad for parameter in method.backbone.parameters()]
    torch.testing.assert_close(actual, expected)


def test_local_views_predict_both_large_ones_and_are_not_predicted() -> None:
    method = build()
    every = views(count=3)
    z = [method.projector(method.backbone(view)) for view in every]
    p = [method.predictor(value) for value in z]
    pairs = [(0, 1), (1, 0), (2, 0), (2, 1)]
    parts = [SimSiamLoss()(p[view], z[target]).loss for view, target in pairs]
    torch.testing.assert_close(method(every, SAMPLES).loss, torch.stack(parts).mean())


def test_the_embedding_is_normalized_without_scale_or_shift() -> None:
    last = build().projector[-1]
    assert isinstance(last, nn.BatchNorm1d)
    assert not last.affine


def test_the_predictor_keeps_its_learning_rate() -> None:
    method = build()
    config = override(recipe("shapes"), ["optimizer.name=sgd"])
    optimizer = build_optimizer(method, config)
    set_learning_rate(optimizer, 0.1, 2.0)
    rates = {
        parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]
    }
    assert {rates[parameter] for parameter in method.predictor.parameters()} == {2.0}
    assert {rates[parameter] for parameter in method.backbone.parameters()} == {0.1}
    assert {rates[parameter] for parameter in method.projector.parameters()} == {0.1}
