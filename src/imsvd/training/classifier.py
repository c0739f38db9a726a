"""An encoder's backbone with a linear classifier on it, and the optimizer of both."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from imsvd.encoder import Encoder
from imsvd.evaluation.classification import ClassificationSettings


class Classifier(nn.Module):
    """Maps normalized images (batch, 3, size, size) to logits (batch, classes).

    A frozen backbone takes no gradients and stays in evaluation mode, so that neither its weights
    nor the statistics of its norms move. The head starts as MoCo's and VICReg's: N(0, 0.01²), bias 0.
    """

    def __init__(self, encoder: Encoder, num_classes: int, *, frozen: bool) -> None:
        super().__init__()
        self.backbone = encoder.backbone.requires_grad_(not frozen)
        self.head = nn.Linear(encoder.num_features, num_classes)
        self.frozen = frozen
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Change the mode of everything but a frozen backbone."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, in float32 whatever the backbone computes in."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = self.backbone(images)
        with torch.autocast(images.device.type, enabled=False):
            logits: Tensor = self.head(features.float())
        return logits

    @property
    def trained(self) -> nn.Module:
        """The part that training changes, which is all that a checkpoint needs."""
        return self.head if self.frozen else self


def build_optimizer(network: Classifier, settings: ClassificationSettings) -> torch.optim.Optimizer:
    """SGD with a rate of its own for the head; a frozen backbone takes no part."""
    rates = {"head": settings.head_lr, "backbone": settings.backbone_lr}
    modules = {"head": network.head, "backbone": network.backbone}
    groups = [
        {
            "params": list(module.parameters()),
            "name": f"{name}_lr",
            "peak_lr": rates[name] * settings.batch_size / 256,
        }
        for name, module in modules.items()
        if name == "head" or not settings.frozen
    ]
    return torch.optim.SGD(
        groups, lr=1.0, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
