import pytest
import torch
import torch.nn.functional as F
from torch import nn

from imsvd.errors import InputError
from imsvd.losses.moco_v2 import MoCoV2Loss
from imsvd.methods.moco_v2 import MoCoV2, MoCoV2Settings
from tests.methods.networks import SAMPLES, NormFree, views


def build(symmetric: bool = False, queue_length: int = 20) -> MoCoV2:
    settings = MoCoV2Settings(
        projector=(10, 5), momentum=0.9, queue_length=queue_length, symmetric=symmetric
    )
    return MoCoV2(settings, NormFree()).double()


def disturb(module: nn.Module) -> None:
    """Move the weights, as a step would."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("symmetric", [False, True])
def test_queries_meet_momentum_keys_and_the_queue_as_it_was(symmetric: bool) -> None:
    method = build(symmetric)
    disturb(method.target)  # or it would equal the query network
    before = method.queue.values.clone()
    pair = views()
    queries = [method.projector(method.backbone(view)) for view in pair]
    keys = [method.target(view) for view in pair]
    loss = MoCoV2Loss(0.2)
    expected = loss(queries[0], keys[1], before).loss
    if symmetric:
        expected = (expected + loss(queries[1], keys[0], before).loss) / 2
    output = method(pair, SAMPLES)
    torch.testing.assert_close(output.loss, expected)
    output.loss.backward()  # although the queue has moved on
    assert torch.equal(output.embedding, queries[0])
    pushed = [F.normalize(key, dim=1) for key in ((keys[1], keys[0]) if symmetric else keys[1:])]
    count = 8 * len(pushed)
    torch.testing.assert_close(method.queue.values[:count], torch.cat(pushed).detach())
    assert torch.equal(method.queue.values[count:], before[count:])


def test_the_key_network_gets_no_gradient_and_follows() -> None:
    method = build()
    method(views(), SAMPLES).loss.backward()
    assert all(parameter.grad is None for parameter in method.target.parameters())
    before = [parameter.clone() for parameter in method.target.parameters()]
    disturb(method.backbone)
    disturb(method.projector)
    method.after_step(0.5)
    online = [*method.backbone.parameters(), *method.projector.parameters()]
    for old, new, current in zip(before, method.target.parameters(), online, strict=True):
        torch.testing.assert_close(new.detach(), 0.9 * old + 0.1 * current.detach())


def test_a_checkpoint_holds_queue_and_place() -> None:
    method, other = build(), build()
    for seed in range(3):  # past the end of the queue
        method(views(seed=seed), SAMPLES)
        disturb(method.backbone)
        method.after_step(0.5)
    other.load_state_dict(method.state_dict())
    for each in (method, other):
        each(views(seed=9), SAMPLES)
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


def test_a_queue_shorter_than_a_step_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"method\.queue_length=6 is shorter than the 8 images"):
        build(queue_length=6)(views(), SAMPLES)


def test_the_projector_has_no_batch_norm() -> None:
    assert not any(isinstance(module, nn.BatchNorm1d) for module in build().projector.modules())
