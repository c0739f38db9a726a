"""The contract of every method. A method in `METHODS` is tested here without an edit."""

import itertools
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from imsvd.checkpoints import read_checkpoint, save_checkpoint
from imsvd.config import override
from imsvd.methods import METHODS, Method, MethodSettings, build_method
from imsvd.methods.settings import SMALLEST_BATCH, Scale
from imsvd.networks import build_backbone, feature_width, freeze_stages
from imsvd.pretraining.display import LABELS
from imsvd.pretraining.optimizers import build_optimizer, set_learning_rate
from imsvd.recipes import recipe
from tests.pretraining import tiny

SAMPLES = 40
"""Images in the data that the methods are built for."""

FORMS = {
    f"{name}, {form}": settings.smallest()
    for name, (kind, _) in METHODS.items()
    for form, settings in (
        ("published", kind()),
        ("small", recipe("cifar10-cpu", name).method),
    )
}
"""The smallest form of every method as published and as in short runs, which use other parts of it."""

every_form = pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)


def build(settings: MethodSettings, seed: int = 0) -> Method:
    torch.manual_seed(seed)
    return build_method(settings, build_backbone(tiny.config().backbone), SAMPLES)


def views(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SMALLEST_BATCH, 3, 32, 32, generator=generator) for _ in range(2)]


def samples(seed: int = 0) -> Tensor:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))[:SMALLEST_BATCH]


def train(
    method: Method, steps: int, state: dict[str, Any] | None = None, *, epochs: bool = True
) -> dict[str, Any]:
    """Take `steps`, each an epoch of its own unless none begins, and return the optimizer's state."""
    optimizer = build_optimizer(method, override(tiny.config(), ["optimizer.name=lars"]))
    if state is not None:
        optimizer.load_state_dict(state)
    set_learning_rate(optimizer, 0.1, 0.1)
    for step in range(steps):
        if epochs:
            method.begin_epoch(step)
        optimizer.zero_grad()
        method(views(step), samples(step)).loss.backward()
        optimizer.step()
        method.after_step((step + 1) / steps)
    return optimizer.state_dict()


@pytest.mark.parametrize("name", METHODS)
def test_settings_know_their_name_and_rows(name: str) -> None:
    kind, _ = METHODS[name]
    assert kind().name == name
    assert set(kind.recipes) == (set() if name == "imsvd" else set(get_args(Scale)))
    assert all(row.provenance and "\n" not in row.provenance for row in kind.recipes.values())


@pytest.mark.parametrize("name", METHODS)
def test_facts_name_settings_that_exist(name: str) -> None:
    kind, _ = METHODS[name]
    named = {*kind.counted_in_epochs, *kind.smallest_sizes, *filter(None, [kind.first_phase])}
    assert named <= set(kind.model_fields)
    assert not kind.first_phase or kind.first_phase in kind.counted_in_epochs


@every_form
def test_the_smallest_form_is_as_small_as_it_gets(settings: MethodSettings) -> None:
    assert settings.smallest() == settings
    weights = build(settings).parameters()
    assert sum([weight.numel() for weight in weights if weight.requires_grad]) < 50_000


@every_form
def test_a_step_gives_what_the_loop_reads(settings: MethodSettings) -> None:
    method = build(settings)
    output = method(views(), samples())
    assert output.loss.shape == ()
    assert torch.isfinite(output.loss)
    assert all(term.shape == () and not term.requires_grad for term in output.terms.values())
    assert len(output.embedding) == SMALLEST_BATCH
    width = feature_width(method.backbone)
    assert [view.shape for view in output.features] == [(SMALLEST_BATCH, width)] * 2
    assert not any(view.requires_grad for view in output.features)
    assert not torch.equal(*output.features)
    health = method.summarize(method.statistics(output.embedding))
    assert all(isinstance(value, float) for value in health.values())
    for row in method.bounds(SMALLEST_BATCH).values():
        assert set(row) == {*output.terms, "total"}
    labels = {**LABELS, **settings.labels}
    assert all(len(labels.get(name, name)) <= 5 for name in (*output.terms, *health))


@every_form
def test_every_parameter_gets_a_gradient_and_every_weight_moves(settings: MethodSettings) -> None:
    method = build(settings)
    before = {key: value.clone() for key, value in method.named_parameters()}
    train(method, steps=3)  # a zero-initialized block passes gradients on only after it has moved
    for key, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            # A bias before a norm has no effect, and so no reason to move.
            assert parameter.ndim == 1 or not torch.equal(parameter, before[key]), key


@every_form
def test_a_pretrained_backbone_is_copied_and_its_frozen_stages_stay(
    settings: MethodSettings,
) -> None:
    torch.manual_seed(1)
    backbone = build_backbone(tiny.config().backbone)
    backbone(views()[0])  # statistics that are not those of a new network
    pretrained = {key: value.clone() for key, value in backbone.state_dict().items()}
    freeze_stages(backbone, 3)
    method = build_method(settings, backbone, SAMPLES)
    fixed = {
        name: value
        for name, value in pretrained.items()
        if name.startswith(("conv1.", "bn1.", "layer1.", "layer2."))
        and not name.endswith("num_batches_tracked")
    }
    copies = [name for name in method.state_dict() if name.endswith("layer1.0.bn1.running_mean")]
    prefixes = [name.removesuffix("layer1.0.bn1.running_mean") for name in copies]
    assert "backbone." in prefixes
    for name, prefix in itertools.product(pretrained, prefixes):
        if prefix + name in method.state_dict():
            assert torch.equal(method.state_dict()[prefix + name], pretrained[name])
    train(method, steps=3)
    for name, prefix in itertools.product(fixed, prefixes):
        assert torch.equal(method.state_dict()[prefix + name], fixed[name]), prefix + name
    moved = "backbone.layer4.0.conv1.weight"
    assert not torch.equal(method.state_dict()[moved], pretrained[moved.removeprefix("backbone.")])


@every_form
def test_a_checkpoint_continues_exactly(settings: MethodSettings, tmp_path: Path) -> None:
    method = build(settings)
    state = {"optimizer": train(method, steps=3), "weights": dict(method.state_dict())}
    loaded = read_checkpoint(save_checkpoint(tmp_path, 3, state))
    other = build(settings, seed=1)
    other.load_state_dict(loaded["weights"])
    # In the middle of an epoch: decisions made at its beginning must be in the checkpoint too.
    train(method, 2, state["optimizer"], epochs=False)
    train(other, 2, loaded["optimizer"], epochs=False)
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
