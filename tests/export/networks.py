"""Encoders as a training run would leave them, without the training."""

import torch
from torch import nn

from imsvd.encoder import Encoder, EncoderDescription
from imsvd.networks import BackboneSettings


def encoder(name: str = "resnet18", size: int = 64, **backbone: object) -> Encoder:
    """An encoder whose norms have seen data: every weight and statistic matters to its output."""
    settings = BackboneSettings.model_validate(
        {"name": name, "zero_init_residual": False, **backbone}
    )
    torch.manual_seed(0)
    made = Encoder(
        EncoderDescription(
            method="imsvd",
            backbone=settings,
            projector=(16, 12),
            units=(4, 3, 5),
            size=size,
            mean=(0.4, 0.5, 0.6),
            std=(0.2, 0.25, 0.3),
        )
    )
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.0)
    return made.eval()


def images(count: int = 3, size: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, size, size, generator=generator)


def normalized(pictures: torch.Tensor) -> torch.Tensor:
    """What `encoder` above feeds its backbone, written out."""
    mean = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    std = torch.tensor([0.2, 0.25, 0.3]).view(3, 1, 1)
    return (pictures - mean) / std
