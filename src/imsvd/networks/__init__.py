"""Backbones and heads: the networks, without any objective."""

from imsvd.networks.backbone import (
    BackboneSettings,
    build_backbone,
    feature_width,
    synchronize_norms,
    take_off_heads,
    torchvision_network,
)
from imsvd.networks.heads import Last, projector

__all__ = [
    "BackboneSettings",
    "Last",
    "build_backbone",
    "feature_width",
    "projector",
    "synchronize_norms",
    "take_off_heads",
    "torchvision_network",
]
