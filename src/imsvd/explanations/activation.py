"""Grad-CAM (https://arxiv.org/abs/1610.02391) of a single unit: where in the image its evidence is.

The gradient of the unit's score with respect to the last spatial features says how much each channel
matters; the channels weighted by it, negative sums cut off, make a map. In a convolutional network
those features are what the pooling sees. In a vision transformer they are the patch tokens that go
into the last block: behind it only the class token still reaches the output.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.information import soft_discretise

Target = Literal["log_probability", "logit"]


def grad_cam(
    encoder: Encoder, images: Tensor, places: Tensor, target: Target = "log_probability"
) -> Tensor:
    """Maps of where each image shows its unit, (batch, height, width) in [0, 1], at the image's size.

    Each map is scaled to a maximum of 1; a map without positive evidence is 0 everywhere.

    Args:
        encoder: in evaluation mode, so that images do not influence one another.
        images: (batch, 3, height, width), normalised.
        places: (batch,) the unit of each image, counted over all variables.
        target: what is differentiated. A number added to all logits of a variable changes its logits
            and nothing else; the log-probability does not see it.
    """
    if target not in get_args(Target):
        raise InputError(f"target = {target!r}: choose one of {get_args(Target)}.")
    with torch.enable_grad():
        maps, features = _maps_and_features(encoder.backbone, images.detach().requires_grad_())
        scores = encoder.projector(features)
        if target == "log_probability":
            q = soft_discretise(scores, encoder.description.units)
            scores = q.clamp_min(torch.finfo(q.dtype).tiny).log()
        chosen = scores.gather(1, places[:, None]).sum()
        (gradient,) = torch.autograd.grad(chosen, maps)
    grid_maps = _as_grid(encoder.backbone, maps.detach())
    weights = _as_grid(encoder.backbone, gradient).mean((2, 3), keepdim=True)
    evidence = (weights * grid_maps).sum(1, keepdim=True).relu()
    largest = evidence.amax((2, 3), keepdim=True)
    scaled = evidence / largest.clamp_min(torch.finfo(evidence.dtype).tiny)
    size = images.shape[-2:]
    return F.interpolate(scaled, size=size, mode="bilinear", align_corners=False)[:, 0]


def _is_transformer(backbone: nn.Module) -> bool:
    return hasattr(backbone, "num_prefix_tokens") and hasattr(backbone, "blocks")


def _maps_and_features(backbone: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """The last spatial features and the pooled ones that follow from them."""
    network: Any = backbone
    if not _is_transformer(backbone):
        maps = network.forward_features(images)
        return maps, network.forward_head(maps)
    caught: list[Tensor] = []
    handle = network.blocks[-1].register_forward_pre_hook(
        lambda _, inputs: caught.append(inputs[0])
    )
    try:
        features = network(images)
    finally:
        handle.remove()
    return caught[0], features


def _as_grid(backbone: nn.Module, values: Tensor) -> Tensor:
    """Spatial features of any layout as (batch, channels, rows, columns)."""
    network: Any = backbone
    if _is_transformer(backbone):
        patches = values[:, network.num_prefix_tokens :]
        rows, columns = network.patch_embed.grid_size
        if rows * columns != patches.shape[1]:
            rows = columns = math.isqrt(patches.shape[1])
        return patches.transpose(1, 2).reshape(len(patches), -1, rows, columns)
    if values.ndim != 4:
        raise InputError(
            f"Grad-CAM needs spatial features, and {type(backbone).__name__} gives "
            f"{values.ndim}-dimensional ones; leave the part out with --only."
        )
    channels = network.num_features
    last = values.shape[-1] == channels and values.shape[1] != channels
    return values.permute(0, 3, 1, 2) if last else values
