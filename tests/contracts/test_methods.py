"""What every method must do, whatever it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from imsvd.checkpoints import read_checkpoint, save_checkpoint
from imsvd.config import override
from imsvd.methods import METHODS, IMSVDSettings, Method, MethodSettings, build_method
from imsvd.methods.barlow_twins import BarlowTwinsSettings
from imsvd.methods.byol import BYOLSettings
from imsvd.methods.corinfomax import CorInfoMaxSettings
from imsvd.methods.dissl import DISSLSettings
from imsvd.methods.la import LASettings
from imsvd.methods.moco_v2 import MoCoV2Settings
from imsvd.methods.npid import NPIDSettings
from imsvd.methods.pcl import PCLSettings
from imsvd.methods.simclr import SimCLRSettings
from imsvd.methods.simsiam import SimSiamSettings
from imsvd.methods.swav import SwAVSettings
from imsvd.methods.vicreg import VICRegSettings
from imsvd.methods.wmse import WMSESettings
from imsvd.networks import build_backbone
from imsvd.training.optimizers import build_optimizer, set_learning_rate
from tests.training import tiny

SMALL: dict[str, Callable[[], MethodSettings]] = {
    "imsvd": lambda: IMSVDSettings(projector=(16, 16), units=4),
    "npid": lambda: NPIDSettings(projector=(16,), num_negatives=6),
    "vicreg": lambda: VICRegSettings(projector=(16, 16)),
    "simclr": lambda: SimCLRSettings(projector=(16, 16)),
    "byol": lambda: BYOLSettings(projector=(16, 16), predictor=16),
    "simsiam": lambda: SimSiamSettings(projector=(16, 16), predictor=8),
    "barlow_twins": lambda: BarlowTwinsSettings(projector=(16, 16)),
    "moco_v2": lambda: MoCoV2Settings(projector=(16, 16), queue_length=20),
    "corinfomax": lambda: CorInfoMaxSettings(projector=(16, 8)),
    "la": lambda: LASettings(
        projector=(16,), num_background=8, clusters=(3, 5), warmup_epochs=1, num_negatives=6
    ),
    "wmse": lambda: WMSESettings(projector=(16, 4), whitening_size=8),
    "pcl": lambda: PCLSettings(
        projector=(16, 16), queue_length=32, clusters=(3, 5), warmup_epochs=1
    ),
    "swav": lambda: SwAVSettings(
        projector=(16, 16), prototypes=6, freeze_steps=1, queue_length=16, queue_start_epoch=1
    ),
    "dissl": lambda: DISSLSettings(teacher=(16,), classes=12),
}


SAMPLES = 24
"""Images in the data that the methods are told of."""


def build(name: str, seed: int = 0) -> Method:
    torch.manual_seed(seed)
    return build_method(SMALL[name](), build_backbone(tiny.config().backbone), SAMPLES)


def views(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 3, 32, 32, generator=generator) for _ in range(2)]


def samples(seed: int = 0) -> Tensor:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))[:8]


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


def test_every_method_has_a_small_form_here() -> None:
    assert SMALL.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_settings_know_their_name(name: str) -> None:
    assert METHODS[name][0]().name == name


@pytest.mark.parametrize("name", METHODS)
def test_a_step_gives_what_the_loop_reads(name: str) -> None:
    method = build(name)
    output = method(views(), samples())
    assert output.loss.shape == ()
    assert torch.isfinite(output.loss)
    assert all(term.shape == () and not term.requires_grad for term in output.terms.values())
    assert len(output.features) == len(output.embedding) == 8
    health = method.summarize(method.statistics(output.embedding))
    assert all(isinstance(value, float) for value in health.values())
    for row in method.bounds(8).values():
        assert set(row) == {*output.terms, "total"}


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_gets_a_gradient_and_every_weight_moves(name: str) -> None:
    method = build(name)
    before = {key: value.clone() for key, value in method.named_parameters()}
    train(method, steps=3)  # a zero-initialized block passes gradients on only after it has moved
    for key, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            # A bias before a norm has no effect, and so no reason to move.
            assert parameter.ndim == 1 or not torch.equal(parameter, before[key]), key


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_continues_exactly(name: str, tmp_path: Path) -> None:
    method = build(name)
    state = {"optimizer": train(method, steps=3), "weights": dict(method.state_dict())}
    loaded = read_checkpoint(save_checkpoint(tmp_path, 3, state))
    other = build(name, seed=1)
    other.load_state_dict(loaded["weights"])
    # In the midst of an epoch: what its beginning has decided must be in the checkpoint too.
    train(method, 2, state["optimizer"], epochs=False)
    train(other, 2, loaded["optimizer"], epochs=False)
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
