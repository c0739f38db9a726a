"""Optimizers and the one learning-rate schedule: linear warm-up, then cosine to a floor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from timm.optim.lars import Lars
from torch import nn

from imsvd.config import Config, OptimizerSettings
from imsvd.methods import Method


def build_optimizer(method: Method, config: Config) -> torch.optim.Optimizer:
    """Build the optimizer; biases and norms are excluded from weight decay and from LARS adaptation."""
    settings = config.optimizer
    groups = _parameter_groups(method, config)
    lr = config.peak_lr
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=settings.momentum)
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=settings.betas)
    optimizer: torch.optim.Optimizer = Lars(
        groups,
        lr=lr,
        momentum=settings.momentum,
        trust_coeff=settings.trust_coefficient,
        trust_clip=settings.trust_clip,
    )
    return optimizer


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of `step`, counted from 0."""
    settings = config.optimizer
    warmup = settings.warmup_epochs * steps_per_epoch
    if step < warmup:
        return config.peak_lr * step / warmup
    total = config.training.epochs * steps_per_epoch
    cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
    return config.peak_lr * (settings.final_lr_ratio + (1 - settings.final_lr_ratio) * cosine)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float, peak_lr: float) -> None:
    """Set every group's learning rate: its share of `lr`, or of `peak_lr` if its rate is constant."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr_ratio"] * (peak_lr if group["constant_lr"] else lr)


def _parameter_groups(method: Method, config: Config) -> list[dict[str, Any]]:
    """Group the parameters by constant or scheduled learning rate, then by weights or vectors.

    A pretrained backbone has groups of its own, last: a lower rate, and no weight decay, which
    would pull it toward zero and so away from what it knows.
    """
    constant = {
        parameter for module in method.constant_lr_modules() for parameter in module.parameters()
    }
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    pretrained = set() if config.init is None else set(method.backbone.parameters())
    fresh = [parameter for parameter in trained if parameter not in pretrained]
    groups = []
    for is_constant in (False, True):
        some = [parameter for parameter in fresh if (parameter in constant) == is_constant]
        groups += _weights_and_vectors(some, config.optimizer, constant_lr=is_constant)
    if config.init is not None:
        some = [parameter for parameter in trained if parameter in pretrained]
        for group in _weights_and_vectors(some, config.optimizer, constant_lr=False):
            lr_ratio = config.init.backbone_lr * group["lr_ratio"]
            groups.append(group | {"lr_ratio": lr_ratio, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


def _weights_and_vectors(
    parameters: Sequence[nn.Parameter], settings: OptimizerSettings, *, constant_lr: bool
) -> list[dict[str, Any]]:
    weights = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [
        {
            "params": weights,
            "weight_decay": settings.weight_decay,
            "lr_ratio": 1.0,
            "constant_lr": constant_lr,
            # For timm's LARS, which else adapts only what decays.
            "always_adapt": True,
        },
        {
            "params": vectors,
            "weight_decay": settings.weight_decay if settings.decay_all else 0.0,
            "lr_ratio": settings.vector_lr_ratio,
            "constant_lr": constant_lr,
            "always_adapt": False,
        },
    ]
