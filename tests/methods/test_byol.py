import torch
from torch import Tensor, nn

from imsvd.losses.byol import BYOLLoss
from imsvd.methods.byol import BYOL, BYOLSettings
from imsvd.methods.memory import cosine_momentum
from tests.methods.networks import SAMPLES, NormFree, views

SETTINGS = BYOLSettings(projector=(10, 5), predictor=7, momentum=0.9)


def build() -> BYOL:
    return BYOL(SETTINGS, NormFree()).double()


def disturb(module: nn.Module) -> None:
    """Move the weights, as a step would."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def predictions(method: BYOL, images: list[Tensor]) -> list[Tensor]:
    return [method.predictor(method.projector(method.backbone(view))) for view in images]


def test_both_directions_are_added_and_use_the_target_network() -> None:
    method = build()
    disturb(method.target)  # or it would equal the online network
    pair = views()
    p, z = predictions(method, pair), [method.target(view) for view in pair]
    loss = BYOLLoss()
    output = method(pair, SAMPLES)
    torch.testing.assert_close(output.loss, loss(p[0], z[1]).loss + loss(p[1], z[0]).loss)
    assert torch.equal(output.embedding, p[0])
    assert torch.equal(output.features[0], method.backbone(pair[0]))
    torch.testing.assert_close(4 - 4 * output.terms["cosine"], output.loss.detach())


def test_local_views_predict_both_large_targets_and_are_none_themselves() -> None:
    method = build()
    every = views(count=3)
    p, z = predictions(method, every), [method.target(view) for view in every[:2]]
    pairs = [(0, 1), (1, 0), (2, 0), (2, 1)]
    parts = [BYOLLoss()(p[view], z[target]).loss for view, target in pairs]
    expected = 2 * torch.stack(parts).mean()
    torch.testing.assert_close(method(every, SAMPLES).loss, expected)


def test_the_target_gets_no_gradient_and_follows_by_the_cosine() -> None:
    method = build()
    method(views(), SAMPLES).loss.backward()
    assert all(parameter.grad is None for parameter in method.target.parameters())
    before = [parameter.clone() for parameter in method.target.parameters()]
    disturb(method.backbone)
    disturb(method.projector)
    method.after_step(0.25)
    momentum = cosine_momentum(0.9, 0.25)
    online = [*method.backbone.parameters(), *method.projector.parameters()]
    for old, new, current in zip(before, method.target.parameters(), online, strict=True):
        wanted = momentum * old + (1 - momentum) * current.detach()
        torch.testing.assert_close(new.detach(), wanted)


def test_a_checkpoint_holds_the_target() -> None:
    method, other = build(), build()
    disturb(method)
    other.load_state_dict(method.state_dict())
    assert torch.equal(method(views(), SAMPLES).loss, other(views(), SAMPLES).loss)
    for each in (method, other):
        each.after_step(0.5)
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
