"""Momentum encoders: frozen copies that follow the network being trained as a moving average.

A copy is an ordinary submodule, so that a checkpoint holds it, and its parameters need no gradient,
so that neither the optimizer nor DistributedDataParallel touches them. Its parameters are averaged;
its buffers (running statistics of BatchNorm, counters) are not weights, and are taken over as they are.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn


def momentum_copy(*modules: nn.Module) -> nn.Sequential:
    """Copy `modules` into one frozen network that applies them in turn, weights and all."""
    return nn.Sequential(*(copy.deepcopy(module) for module in modules)).requires_grad_(False)


@torch.no_grad()
def update_momentum(follower: nn.Module, online: nn.Module, momentum: float) -> None:
    """Move a copy toward its original: θ' ← m θ' + (1 − m) θ; buffers are taken over.

    Args:
        follower: what `momentum_copy` has made.
        online: the original; `nn.Sequential(backbone, projector)` if several modules were copied.
        momentum: m, the share of its own value that the copy keeps.
    """
    torch._foreach_lerp_(list(follower.parameters()), list(online.parameters()), 1 - momentum)
    for buffer, current in zip(follower.buffers(), online.buffers(), strict=True):
        buffer.copy_(current)


def cosine_momentum(base: float, progress: float) -> float:
    """Momentum that rises from `base` to 1 along a cosine while `progress` runs from 0 to 1."""
    return 1 - (1 - base) * (math.cos(math.pi * progress) + 1) / 2
