from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from imsvd.errors import InputError
from imsvd.methods.npid import NPID, NPIDSettings
from tests import gloo
from tests.methods import remembering
from tests.methods.networks import NormFree
from tests.methods.remembering import IMAGES, samples, views


def build(**changes: Any) -> NPID:
    torch.manual_seed(0)
    settings = NPIDSettings(projector=(5,), num_negatives=7, **changes)
    return NPID(settings, NormFree(), IMAGES).double()


def test_the_defaults_are_the_published_settings() -> None:
    settings = NPIDSettings()
    assert (settings.projector, settings.num_negatives) == ((128,), 4096)
    assert (settings.temperature, settings.bank_momentum) == (0.07, 0.5)


@pytest.mark.parametrize("form", ["nce", "softmax"])
def test_the_loss_is_the_mean_over_all_views_local_ones_too(form: str) -> None:
    method = build(form=form)
    four = views(0, count=4)
    output = method(four, samples(0))
    alone = [method([view, view], samples(0)).loss for view in four]
    torch.testing.assert_close(output.loss, torch.stack(alone).mean())
    assert torch.equal(output.features[0], method.backbone(four[0]))
    assert torch.equal(output.embedding, method.projector(method.backbone(four[0])))
    assert not any(view.requires_grad for view in output.features)
    assert not output.embedding.requires_grad


def test_the_bank_moves_after_the_step_towards_the_mean_of_the_two_large_views() -> None:
    method = build(form="softmax", bank_momentum=0.25)
    before = method.bank.entries.clone()
    pictures = views(0, count=3)
    method(pictures, samples(0)).loss.backward()
    assert torch.equal(method.bank.entries, before)
    first, second = (method.projector(method.backbone(view)).detach() for view in pictures[:2])
    method.after_step(0.1)
    middle = F.normalize(F.normalize(first, dim=1) + F.normalize(second, dim=1), dim=1)
    expected = F.normalize(0.25 * before[samples(0)] + 0.75 * middle, dim=1)
    torch.testing.assert_close(method.bank.entries[samples(0)], expected)
    unseen = [image for image in range(IMAGES) if image not in samples(0).tolist()]
    assert torch.equal(method.bank.entries[unseen], before[unseen])


def test_negatives_depend_on_the_step_alone() -> None:
    method = build(bank_momentum=0.9)
    torch.manual_seed(1)
    first = method(views(0), samples(0)).loss
    torch.manual_seed(2)
    again = method(views(0), samples(0)).loss
    assert torch.equal(first, again)
    method.steps += 1
    assert not torch.equal(first, method(views(0), samples(0)).loss)


def test_training_continues_exactly_inside_an_epoch() -> None:
    whole, interrupted, resumed = build(), build(), build()
    remembering.train(whole, [0, 1])
    remembering.train(interrupted, [0])
    with torch.no_grad():
        for value in resumed.state_dict().values():
            value.zero_()
    resumed.load_state_dict(interrupted.state_dict())
    remembering.train(resumed, [1])
    assert float(resumed.loss.normalizer) > 0
    assert int(resumed.steps) == 6
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def train_both_forms() -> list[dict[str, Any]]:
    return [remembering.trained(partial(build, form=form), [0, 1]) for form in ("nce", "softmax")]


def test_two_processes_train_as_one() -> None:
    expected = train_both_forms()
    for results in gloo.run(2, train_both_forms):
        for result, single in zip(results, expected, strict=True):
            remembering.assert_equal_training(result, single)


def test_the_loss_of_instances_falls() -> None:
    losses = remembering.train(build(form="softmax", temperature=0.2), [0] * 12)
    assert losses[-1] < losses[0]


def test_the_number_of_images_must_be_known() -> None:
    with pytest.raises(InputError, match="number of training images"):
        NPID(NPIDSettings(), NormFree())
