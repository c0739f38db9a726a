"""Networks of full size on the meta device: every shape and every count, and no memory."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from imsvd.config import Config
from imsvd.encoder import describe_encoder
from imsvd.methods import Method, build_method
from imsvd.networks import BackboneSettings, build_backbone

IMAGENET_IMAGES = 1_281_167
"""Training images of ImageNet, which methods with a memory bank must know."""

_FLOAT_BYTES = 4
_SLOTS = {"lars": 1, "sgd": 1, "adamw": 2}
"""Tensors that an optimizer remembers for every weight."""


class Sizes(NamedTuple):
    """Parameters of a method and bytes of what a run writes."""

    backbone: int
    heads: int
    """Trained beside the backbone."""
    momentum: int
    """Of copies that follow the trained network."""
    checkpoint: int
    encoder: int


def build_on_meta(config: Config) -> Method:
    """Build the method as it would be trained on ImageNet, without its memory."""
    backbone = _backbone(config.backbone.model_dump_json())
    with torch.device("meta"):
        return build_method(config.method, backbone, IMAGENET_IMAGES)


def same_network(config: Config) -> str:
    """Return `config` as JSON without what networks do not depend on: seed, data, length, machine."""
    usual = Config()
    rest = {"seed": usual.seed, "data": usual.data, "compute": usual.compute}
    batch = usual.training.model_copy(update={"batch_size": config.training.batch_size})
    return config.model_copy(update={**rest, "training": batch}).model_dump_json()


def measure(config: Config) -> Sizes:
    """Count what `config` trains and writes."""
    method = build_on_meta(config)
    backbone = _count(method.backbone, trained=True)
    trained = _count(method, trained=True)
    optimizer = trained * _FLOAT_BYTES * _SLOTS[config.optimizer.name]
    state = method.state_dict()
    parts = ("backbone.", "projector.") if describe_encoder(config).projector else ("backbone.",)
    return Sizes(
        backbone=backbone,
        heads=trained - backbone,
        momentum=_count(method, trained=False),
        checkpoint=_bytes(state) + optimizer,
        encoder=_bytes({name: value for name, value in state.items() if name.startswith(parts)}),
    )


def _count(module: nn.Module, *, trained: bool) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad == trained)


def _bytes(state: dict[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in state.values())


@cache
def _backbone(settings: str) -> nn.Module:
    """The backbone; most of the time to build a method is its, and all of them may share it."""
    with torch.device("meta"):
        return build_backbone(BackboneSettings.model_validate_json(settings))
