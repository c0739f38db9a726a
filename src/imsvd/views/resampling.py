"""Resizing and blurring as matrices: each is a weighted sum along one axis, then the other.

A separable filter of one sample is a small dense matrix, so a batch in which every sample has its
own crop or its own blur is two batched matrix products. The weights are those of torchvision's
antialiased `resize` (after Pillow) and of its `gaussian_blur` with reflected edges.
"""

from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from imsvd.views.parameters import Flags, Integers, Reals

_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}
_CUBIC = -0.5  # Pillow's and the antialiased torch kernel's, unlike the -0.75 of plain bicubic


def _filter(distance: Tensor, interpolation: Literal["bilinear", "bicubic"]) -> Tensor:
    """Interpolation weight at each non-negative distance, without branches; in place."""
    if interpolation == "bilinear":
        return distance.neg_().add_(1.0).clamp_min_(0.0)
    near = distance.clamp(max=1.0)
    far = distance.clamp_(1.0, 2.0)
    inner = ((_CUBIC + 2) * near - (_CUBIC + 3)) * near * near + 1
    outer = _CUBIC * (((far - 5) * far + 8) * far - 4)
    return inner + outer  # each piece is zero where the other one holds


def resize_matrices(
    starts: Integers,
    lengths: Integers,
    in_size: int,
    out_size: int,
    interpolation: Literal["bilinear", "bicubic"],
    device: torch.device,
    reverse: Flags | None = None,
) -> Tensor:
    """Crop, resize and optionally mirror one axis of every sample.

    Args:
        starts: (n,) first pixel of each crop.
        lengths: (n,) pixels in each crop; pixels outside it never contribute.
        in_size: pixels of the axis before.
        out_size: pixels of the axis after.
        interpolation: the filter, widened by the scale when shrinking.
        device: where the matrices are built.
        reverse: (n,) whether the result is mirrored.

    Returns:
        (n, out_size, in_size) float32, rows summing to one.
    """
    scale = lengths / out_size
    out = np.broadcast_to(np.arange(out_size), (len(lengths), out_size))
    if reverse is not None:
        out = np.where(reverse[:, None], out[:, ::-1], out)
    centers = starts[:, None] + scale[:, None] * (out + 0.5) - 0.5
    position = np.arange(in_size)
    inside = (position >= starts[:, None]) & (position < (starts + lengths)[:, None])
    narrowing = torch.from_numpy((1 / np.maximum(scale, 1)).astype(np.float32)).to(device)
    center = torch.from_numpy(centers.astype(np.float32)).to(device)
    mask = torch.from_numpy(inside.astype(np.float32)).to(device)
    pixels = torch.arange(in_size, dtype=torch.float32, device=device)
    distance = (pixels - center[:, :, None]).abs_().mul_(narrowing[:, None, None])
    weights = _filter(distance, interpolation).mul_(mask[:, None, :])
    return weights.div_(weights.sum(dim=2, keepdim=True))


def blur_kernel_size(size: int) -> int:
    """An odd tenth of the image, at least 3: the 23 pixels at 224 that BYOL introduced."""
    return max(3, 2 * (size // 20) + 1)


@lru_cache(maxsize=16)
def _reflections(size: int, kernel_size: int, device: torch.device) -> Tensor:
    """(kernel_size, size * size): where tap k of output pixel i reads, edges reflected."""
    half = kernel_size // 2
    out = torch.arange(size)
    source = (out + torch.arange(-half, half + 1)[:, None]).abs()
    source = (size - 1) - ((size - 1) - source).abs()
    taps = torch.nn.functional.one_hot(source, size).to(torch.float32)
    return taps.reshape(kernel_size, size * size).to(device)


def blur_matrices(sigmas: Reals, size: int, device: torch.device) -> Tensor:
    """Gaussian blur along one axis, of a different width for every sample.

    Args:
        sigmas: (n,) standard deviations in pixels.
        size: pixels of the axis.
        device: where the matrices are built.

    Returns:
        (n, size, size) float32, rows summing to one.
    """
    kernel_size = blur_kernel_size(size)
    offsets = np.arange(kernel_size) - kernel_size // 2
    weights = np.exp(-0.5 * (offsets / sigmas[:, None]) ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    kernels = torch.from_numpy(weights.astype(np.float32)).to(device)
    return (kernels @ _reflections(size, kernel_size, device)).view(-1, size, size)
