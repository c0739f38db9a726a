"""How images look apart from what they show: light, color, sharpness, shape.

Codes are trained to ignore these properties, so a blur or a color cast hardly moves any unit. Drift
therefore compares them too. Each is divided at the quartiles of all images of both sets, which makes
it a variable of four units like those of a code.

| property | of pixels R, G, B in [0, 1] and Y = 0.299 R + 0.587 G + 0.114 B |
|---|---|
| brightness | mean of Y |
| contrast | standard deviation of Y |
| colorfulness | mean of max(R, G, B) - min(R, G, B) |
| warmth | mean of R - B |
| tint | mean of G - (R + B) / 2: green above, magenta below |
| sharpness | log of (deviation of the Laplacian of Y / deviation of Y), in the central 512 × 512 pixels |
| pixels | log of the number of pixels |
| shape | log of width / height |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PROPERTIES = (
    "brightness",
    "contrast",
    "colorfulness",
    "warmth",
    "tint",
    "sharpness",
    "pixels",
    "shape",
)
QUARTERS = ("lowest quarter", "second quarter", "third quarter", "highest quarter")
_CENTER = 512
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_SMALLEST = 1e-3
"""Deviations below this are rounding of 8-bit pixels."""


def appearance(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the properties (8,) of an image (3, height, width)."""
    height, width = image.shape[1:]
    # A grid of about 512 × 512 pixels gives the same means as all of them.
    step = max(1, min(height, width) // _CENTER)
    pixels = image[:, ::step, ::step].reshape(3, -1).astype(np.float32) / 255
    red, green, blue = pixels.mean(axis=1)
    luma = _LUMA @ pixels
    top, left = max(0, (height - _CENTER) // 2), max(0, (width - _CENTER) // 2)
    center = image[:, top : top + _CENTER, left : left + _CENTER]
    values = (
        luma.mean(),
        luma.std(),
        (pixels.max(axis=0) - pixels.min(axis=0)).mean(),
        red - blue,
        green - (red + blue) / 2,
        _sharpness(np.tensordot(_LUMA, center.astype(np.float32) / 255, axes=1)),
        np.log(height * width),
        np.log(width / height),
    )
    return np.array(values, dtype=np.float32)


def _sharpness(luma: NDArray[np.floating[Any]]) -> float:
    padded = np.pad(luma, 1, mode="edge")
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    laplacian = float((around - 4 * luma).std())
    return float(np.log(max(laplacian, _SMALLEST) / max(float(luma.std()), _SMALLEST)))


def quarters(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Divide properties (n_a, 8) and (n_b, 8) at the quartiles of both sets together: codes of 4 units.

    Equal values share a quarter.
    """
    edges = np.quantile(np.concatenate([first, second]), (0.25, 0.5, 0.75), axis=0)
    coded = [
        (values[None] > edges[:, None]).sum(axis=0).astype(np.uint8) for values in (first, second)
    ]
    return coded[0], coded[1]
