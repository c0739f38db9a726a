"""Backbones and heads: the networks, without any objective."""

from imsvd.networks.backbone import (
    BackboneSettings,
    build_backbone,
    feature_width,
    fix_statistics,
    freeze_stages,
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
    "fix_statistics",
    "freeze_stages",
    "projector",
    "synchronize_norms",
    "take_off_heads",
    "torchvision_network",
]
