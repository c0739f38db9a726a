"""Images and parameters that the tests of views share."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from imsvd.views.parameters import ViewParameters

Kind = Literal["noise", "smooth", "constant", "gray", "black", "white", "primary"]
KINDS: tuple[Kind, ...] = ("noise", "smooth", "constant", "gray", "black", "white", "primary")


def make_images(kind: Kind, count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """(count, 3, height, width) uint8."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 3, height, width)
    noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    if kind == "smooth":
        coarse = torch.rand((count, 3, 5, 5), generator=generator) * 255
        fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
        return fine.to(torch.uint8)
    if kind == "constant":
        return noise[:, :, :1, :1].expand(shape).contiguous()
    if kind == "gray":
        return noise[:, :1].expand(shape).contiguous()
    if kind == "primary":
        return noise.ge(128).to(torch.uint8) * 255
    return {"noise": noise, "black": noise * 0, "white": noise * 0 + 255}[kind]


def make_parameters(count: int, height: int, width: int, /, **changes: Any) -> ViewParameters:
    """Parameters that leave an image as it is, but for the changes given."""
    no, one, zero = np.zeros(count, dtype=bool), np.ones(count), np.zeros(count, dtype=np.int64)
    neutral = ViewParameters(
        top=zero,
        left=zero,
        height=zero + height,
        width=zero + width,
        flip=no,
        jitter=no,
        order=np.tile(np.arange(4), (count, 1)),
        brightness=one,
        contrast=one,
        saturation=one,
        hue=np.zeros(count),
        gray=no,
        blur=no,
        blur_sigma=one,
        solarize=no,
    )
    return neutral._replace(**changes)
