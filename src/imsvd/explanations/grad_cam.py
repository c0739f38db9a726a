"""Grad-CAM (https://arxiv.org/abs/1610.02391) of a single unit: where in the image its evidence is.

The gradient of the unit's score with respect to the last spatial features says how much each channel
matters; the channels weighted by it, negative sums cut off, make a map. In a convolutional network
those features are what the pooling sees. In a vision transformer they are the patch tokens that go
into the last block: behind it only the class token still reaches the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd.encoder import Encoder
from imsvd.errors import InputError

Target = Literal["log_probability", "logit"]


def grad_cam(
    encoder: Encoder, images: Tensor, places: Tensor, target: Target = "log_probability"
) -> Tensor:
    """Maps of where each image shows its unit, (batch, height, width) in [0, 1], at the image's size.

    Each map is scaled to a maximum of 1 before it is enlarged; one without positive evidence is 0
    everywhere.

    Args:
        encoder: in evaluation mode, so that images do not influence one another.
        images: (batch, 3, height, width), normalized.
        places: (batch,) the unit of each image, counted over all variables.
        target: what is differentiated. A number added to all logits of a variable changes its logits
            and nothing else; the log-probability does not see it. Of that, the log-odds are
            differentiated: ∇ log q = (1 − q) ∇ log (q / (1 − q)), the same map once it is scaled,
            and 1 − q has no digits left where a unit is sure.
    """
    if target not in get_args(Target):
        raise InputError(f"target = {target!r}: choose one of {get_args(Target)}.")
    with torch.enable_grad():
        maps, features = _maps_and_features(encoder.backbone, images.detach().requires_grad_())
        scores = encoder.projector(features)
        chosen = scores.gather(1, places[:, None])[:, 0]
        if target == "log_probability":
            chosen = chosen - _log_sum_of_others(scores, places, encoder.description.units)
        (gradient,) = torch.autograd.grad(chosen.sum(), maps)
    grid_maps = _as_grid(encoder.backbone, maps.detach())
    weights = _as_grid(encoder.backbone, gradient).mean((2, 3), keepdim=True)
    evidence = (weights * grid_maps).sum(1, keepdim=True).relu()
    largest = evidence.amax((2, 3), keepdim=True)
    scaled = evidence / largest.clamp_min(torch.finfo(evidence.dtype).tiny)
    size = images.shape[-2:]
    return F.interpolate(scaled, size=size, mode="bilinear", align_corners=False)[:, 0]


def _log_sum_of_others(scores: Tensor, places: Tensor, units: Sequence[int]) -> Tensor:
    """Logarithm of the summed exponentials of all other units of each place's variable, (batch,)."""
    sizes = torch.tensor(units, device=scores.device)
    variables = torch.arange(len(units), device=scores.device).repeat_interleave(sizes)
    others = variables[places][:, None] == variables[None]
    others.scatter_(1, places[:, None], False)
    return scores.masked_fill(~others, -torch.inf).logsumexp(1)


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
