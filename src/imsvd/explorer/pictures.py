"""Pictures as the page gets them: squares that show what the encoder sees, always encoded anew."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

MAP_OPACITY = 0.6
QUALITY = 88


def seen_square(image: Tensor, encoder_size: int, side: int) -> Image.Image:
    """What `center_crop` leaves of an image (3, height, width), resampled once to `side` pixels."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    return picture.resize(
        (side, side),
        Image.Resampling.LANCZOS,
        box=seen_box(picture.width, picture.height, encoder_size),
    )


def seen_box(width: int, height: int, encoder_size: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the part of an image that an encoder sees."""
    if width == height == encoder_size:
        return 0, 0, width, height
    # In whole pixels of the resized image, as `center_crop` cuts it.
    shorter = round(encoder_size * 256 / 224)
    sides = [int(shorter * side / min(width, height)) for side in (width, height)]
    left, top = (
        round((side - encoder_size) / 2) * whole / side
        for side, whole in zip(sides, (width, height), strict=True)
    )
    return (
        left,
        top,
        left + encoder_size * width / sides[0],
        top + encoder_size * height / sides[1],
    )


def lay_over(picture: Image.Image, evidence: NDArray[np.floating[Any]]) -> Image.Image:
    """A map (height, width) in [0, 1] in colors over a picture in gray."""
    shape = (picture.height, picture.width)
    scaled = Image.fromarray(evidence.astype(np.float32)).resize(
        (shape[1], shape[0]), Image.Resampling.BILINEAR
    )
    colors = mpl.colormaps["inferno"](np.clip(np.asarray(scaled), 0, 1))[..., :3] * 255
    # Gray below the map, so that its colors are the map's alone.
    gray = np.asarray(picture, dtype=np.float64).mean(2, keepdims=True)
    mixed = MAP_OPACITY * colors + (1 - MAP_OPACITY) * gray
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def as_jpeg(picture: Image.Image) -> bytes:
    """A JPEG file that holds the pixels and nothing else."""
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=QUALITY)
    return content.getvalue()
