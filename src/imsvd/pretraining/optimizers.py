"""Optimizers and the one learning-rate schedule: linear warm-up, then cosine to a floor."""

from __future__ import annotations

import math
from typing import Any

import torch
from timm.optim.lars import Lars

from imsvd.config import Config, OptimizerSettings
from imsvd.methods import Method


def build_optimizer(method: Method, config: Config) -> torch.optim.Optimizer:
    """Build the optimizer; biases and norms are excluded from weight decay and from LARS adaptation."""
    settings = config.optimizer
    groups = _parameter_groups(method, settings)
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


def _parameter_groups(method: Method, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Group the parameters by weights or vectors, and by constant or scheduled learning rate."""
    constant = {
        parameter for module in method.constant_lr_modules() for parameter in module.parameters()
    }
    groups = []
    for is_constant in (False, True):
        parameters = [
            parameter
            for parameter in method.parameters()
            if parameter.requires_grad and (parameter in constant) == is_constant
        ]
        weights = [parameter for parameter in parameters if parameter.ndim > 1]
        vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
        groups += [
            {
                "params": weights,
                "weight_decay": settings.weight_decay,
                "lr_ratio": 1.0,
                "constant_lr": is_constant,
                # For timm's LARS, which else adapts only what decays.
                "always_adapt": True,
            },
            {
                "params": vectors,
                "weight_decay": settings.weight_decay if settings.decay_all else 0.0,
                "lr_ratio": settings.vector_lr_ratio,
                "constant_lr": is_constant,
                "always_adapt": False,
            },
        ]
    return [group for group in groups if group["params"]]
