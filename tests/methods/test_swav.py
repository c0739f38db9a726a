from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd.losses.swav import SwAVLoss
from imsvd.methods.base import MethodOutput
from imsvd.methods.swav import SwAV, SwAVSettings
from tests import gloo
from tests.methods import remembering
from tests.methods.networks import SAMPLES, NormFree, views


def build_without_norms() -> SwAV:
    """What several processes must train as one does; BatchNorm would see each one's part alone."""
    settings = SwAVSettings(
        projector=(5,), prototypes=7, freeze_steps=2, queue_length=16, queue_start_epoch=1
    )
    torch.manual_seed(0)
    return SwAV(settings, NormFree()).double()


def train_without_norms() -> dict[str, Any]:
    return remembering.trained(build_without_norms, [0, 1])


def test_two_processes_train_as_one() -> None:
    expected = train_without_norms()
    start = build_without_norms().prototypes
    assert not torch.equal(expected["state"]["prototypes"], start)  # frozen no more
    for result in gloo.run(2, train_without_norms):
        remembering.assert_equal_training(result, expected)


def build(freeze_steps: int = 0, queue_length: int = 0, queue_start_epoch: int = 0) -> SwAV:
    settings = SwAVSettings(
        projector=(10, 5),
        prototypes=7,
        freeze_steps=freeze_steps,
        queue_length=queue_length,
        queue_start_epoch=queue_start_epoch,
    )
    return SwAV(settings, NormFree()).double()


def units(method: SwAV, images: list[Tensor]) -> list[Tensor]:
    return [F.normalize(method.projector(method.backbone(view)), dim=1) for view in images]


@pytest.mark.parametrize("count", [2, 4])
def test_the_loss_is_that_of_cosines_with_the_prototypes(count: int) -> None:
    method = build()
    with torch.no_grad():
        method.prototypes.mul_(3)  # only their direction counts
    images = views(count=count)
    z, prototypes = units(method, images), F.normalize(method.prototypes, dim=1)
    output = method(images, SAMPLES)
    torch.testing.assert_close(output.loss, SwAVLoss()([unit @ prototypes.T for unit in z]).loss)
    assert torch.equal(output.embedding, z[0])
    assert torch.equal(output.features[0], method.backbone(images[0]))


def test_prototypes_are_frozen_by_a_gradient_of_zero() -> None:
    method = build(freeze_steps=2)
    free = build()
    free.load_state_dict(method.state_dict())
    for step in range(4):
        method.zero_grad()
        free.zero_grad()
        losses = [each(views(seed=step), SAMPLES).loss for each in (method, free)]
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
        assert method.prototypes.grad is not None
        assert free.prototypes.grad is not None
        if step < 2:
            assert not method.prototypes.grad.any()
            assert free.prototypes.grad.any()
        else:
            assert torch.equal(method.prototypes.grad, free.prototypes.grad)
        method.after_step(0.5)


def test_the_queue_takes_part_once_full_and_from_its_epoch_on() -> None:
    method = build(queue_length=16, queue_start_epoch=1)
    pushed = [units(method, views(seed=seed)) for seed in range(2)]
    images = views(seed=5)
    prototypes = F.normalize(method.prototypes, dim=1)
    scores = [unit @ prototypes.T for unit in units(method, images)]
    alone = SwAVLoss()(scores).loss
    earlier = [torch.cat([step[view] for step in pushed]) @ prototypes.T for view in range(2)]
    together = SwAVLoss()(scores, earlier).loss
    assert abs(float((alone - together).detach())) > 1e-6

    def loss(epoch: int, steps: int) -> Tensor:
        other = build(queue_length=16, queue_start_epoch=1)
        other.load_state_dict(method.state_dict())
        for seed in range(steps):
            other(views(seed=seed), SAMPLES)
        other.begin_epoch(epoch)
        output: MethodOutput = other(images, SAMPLES)
        torch.autograd.backward(output.loss)  # although the queue has moved on
        return output.loss

    torch.testing.assert_close(loss(epoch=0, steps=2), alone)
    torch.testing.assert_close(loss(epoch=1, steps=1), alone)
    torch.testing.assert_close(loss(epoch=1, steps=2), together)


def test_a_checkpoint_holds_counters_and_queues() -> None:
    method, other = build(2, 16, 1), build(2, 16, 1)
    for step in range(3):
        method.begin_epoch(step)
        method(views(seed=step), SAMPLES)
        method.after_step(0.5)
    other.load_state_dict(method.state_dict())
    results = []
    for each in (method, other):
        output = each(views(seed=9), SAMPLES)
        output.loss.backward()
        results.append((output.loss, each.prototypes.grad))
        each.after_step(0.5)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
