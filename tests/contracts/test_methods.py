"""What every method must do, whatever it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from imsvd.checkpoints import read_checkpoint, save_checkpoint
from imsvd.config import override
from imsvd.methods import METHODS, Method, MethodSettings, build_method
from imsvd.networks import build_backbone
from imsvd.training.optimizers import build_optimizer, set_learning_rate
from tests.training import tiny

SMALL: dict[str, Callable[[], MethodSettings]] = {
    "imsvd": lambda: METHODS["imsvd"][0](projector=(16, 16), units=4),
}


def build(name: str, seed: int = 0) -> Method:
    torch.manual_seed(seed)
    return build_method(SMALL[name](), build_backbone(tiny.config().backbone))


def views(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 3, 32, 32, generator=generator) for _ in range(2)]


def train(method: Method, steps: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Take `steps` and return the optimiser's state."""
    optimizer = build_optimizer(method, override(tiny.config(), ["optimizer.name=lars"]))
    if state is not None:
        optimizer.load_state_dict(state)
    set_learning_rate(optimizer, 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        method(views(step)).loss.backward()
        optimizer.step()
        method.after_step((step + 1) / steps)
    return optimizer.state_dict()


def test_every_method_has_a_small_form_here() -> None:
    assert SMALL.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_settings_know_their_name(name: str) -> None:
    assert METHODS[name][0]().name == name


@pytest.mark.parametrize("name", METHODS)
def test_a_step_gives_what_the_loop_reads(name: str) -> None:
    method = build(name)
    output = method(views())
    assert output.loss.shape == ()
    assert torch.isfinite(output.loss)
    assert all(term.shape == () and not term.requires_grad for term in output.terms.values())
    assert len(output.features) == len(output.embedding) == 8
    health = method.summarise(method.statistics(output.embedding))
    assert all(isinstance(value, float) for value in health.values())
    for row in method.bounds(8).values():
        assert set(row) == {*output.terms, "total"}


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_gets_a_gradient_and_every_weight_moves(name: str) -> None:
    method = build(name)
    before = {key: value.clone() for key, value in method.named_parameters()}
    train(method, steps=3)  # a zero-initialised block passes gradients on only after it has moved
    for key, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            # A bias before a norm has no effect, and so no reason to move.
            assert parameter.ndim == 1 or not torch.equal(parameter, before[key]), key


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_continues_exactly(name: str, tmp_path: Path) -> None:
    method = build(name)
    state = {"optimizer": train(method, steps=2), "weights": dict(method.state_dict())}
    loaded = read_checkpoint(save_checkpoint(tmp_path, 2, state))
    other = build(name, seed=1)
    other.load_state_dict(loaded["weights"])
    train(method, 2, state["optimizer"])
    train(other, 2, loaded["optimizer"])
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
