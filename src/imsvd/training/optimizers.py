"""Optimisers and the one learning-rate schedule: linear warm-up, then cosine to a floor."""

from __future__ import annotations

import math

import torch
from timm.optim.lars import Lars
from torch import nn

from imsvd.config import Config


def build_optimizer(method: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Build the optimiser; biases and norms are spared weight decay (and, by LARS, adaptation)."""
    settings = config.optimizer
    groups = _parameter_groups(method, settings.weight_decay, settings.decay_all)
    lr = config.peak_lr
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=settings.momentum)
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=settings.betas)
    # timm adapts the groups that decay; without decay the weights must be asked for by name.
    groups[0]["always_adapt"] = True
    optimizer: torch.optim.Optimizer = Lars(  # type: ignore[no-untyped-call]
        groups, lr=lr, momentum=settings.momentum, trust_coeff=settings.trust_coefficient
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


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group the learning rate `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _parameter_groups(
    method: nn.Module, weight_decay: float, decay_all: bool
) -> list[dict[str, object]]:
    parameters = [parameter for parameter in method.parameters() if parameter.requires_grad]
    weights = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [
        {"params": weights, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": weight_decay if decay_all else 0.0},
    ]
