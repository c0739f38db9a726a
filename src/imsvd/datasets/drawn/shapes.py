"""The built-in dataset `shapes`: one shape per image, with all generating factors known.

An image depends on (seed, split, index) alone. Shape, texture, color, size, position, rotation,
background and light are drawn independently, so each can be studied separately. Most have two
values, which a single variable of a code can be expected to find. Augmentation can spoil each of
them to a degree: gray makes the colors equal, brightness hides the light, blur the texture, and
cropping size and position. What nothing spoils would be learned first and mixed into everything.
Rotation stays within ±30°, less than the symmetry of any shape; a solid circle or ring does not
show it.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.datasets.drawn.drawing import (
    BACKGROUND_COLORS,
    BACKGROUNDS,
    COLORS,
    SHAPES,
    TEXTURES,
    Figures,
    draw,
)
from imsvd.datasets.sources import ImageSource, hash_listing

MIN_SIZE = 16
_COUNTS = {"train": 6000, "test": 2000}
# Counts how often the images were drawn anew: what was cached of earlier ones is not used.
_DRAWING = 2

# Range of the radius of the circumscribed circle; the image spans -1 to 1.
SIZES: dict[str, tuple[float, float]] = {"small": (0.46, 0.52), "large": (0.76, 0.83)}
# Range in degrees clockwise; the gaps keep neighboring values apart.
ROTATIONS: dict[str, tuple[float, float]] = {
    "left": (-30.0, -16.0),
    "upright": (-7.0, 7.0),
    "right": (16.0, 30.0),
}
# Brightness of the whole image.
LIGHTS: dict[str, float] = {"dim": 0.45, "bright": 1.1}
POSITIONS = ("top left", "top right", "bottom left", "bottom right")

# Of the center of a position from the center of the image, and how far around it shapes lie.
_OFFSET, _WOBBLE = 0.18, 0.05
_BACKGROUND_COLOR = "mauve"
# Weaker than the outline, which would otherwise be learned last.
_TEXTURE_CONTRAST = 0.7
_BACKGROUND_CONTRAST = 1.6

# The order numbers the random streams: add new factors at the end, or all images change.
_FACTORS: dict[str, tuple[str, ...]] = {
    "shape": ("circle", "ring", "cross", "triangle"),
    "texture": ("solid", "stripes"),
    "color": ("red", "blue"),
    "size": tuple(SIZES),
    "position": POSITIONS,
    "rotation": tuple(ROTATIONS),
    "background": ("horizon", "grid"),
    "light": tuple(LIGHTS),
}
# Random streams for the variation within a value of a factor.
_VARIATIONS = ("radius", "x", "y", "angle", "phase", "tint", "slope", "spread")


class ShapesSource(ImageSource):
    """`count` square images, `size` pixels wide; labels are the shapes."""

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        count: int | None = None,
        size: int = 32,
        seed: int = 0,
    ) -> None:
        if size < MIN_SIZE:
            raise ValueError(f"shapes must be at least {MIN_SIZE} px wide, not {size}")
        self.split = split
        self.count = _COUNTS[split] if count is None else count
        self.pixels = size
        self.seed = seed
        keys = self._keys(np.arange(self.count))
        self.attribute_values = dict(_FACTORS)
        self.attributes = {
            name: torch.from_numpy(values) for name, values in _sample_factors(keys).items()
        }
        self.labels = self.attributes["shape"]
        self.classes = _FACTORS["shape"]

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> Tensor:
        """Draw one image, uint8 (3, size, size) RGB."""
        return self.render([index])[0]

    def read_many(self, indices: Sequence[int]) -> list[Tensor]:
        """Draw several images at once, (3, size, size) each."""
        return list(self.render(indices))

    def render(self, indices: Sequence[int]) -> Tensor:
        """Draw images, uint8 (len(indices), 3, size, size)."""
        for index in indices:
            self.require_index(index)
        keys = self._keys(np.asarray(indices, dtype=np.int64))
        return torch.from_numpy(draw(_sample_figures(keys), self.pixels))

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width), the same for all."""
        self.require_index(index)
        return self.pixels, self.pixels

    def identity(self, index: int) -> str:
        """Return a name such as "shapes/train/17"."""
        self.require_index(index)
        return f"shapes/{self.split}/{index}"

    def fingerprint(self) -> str:
        """Return a hash of the arguments and the drawing, which determine everything else."""
        facts = f"shapes {_DRAWING} {self.split} {self.count} {self.pixels} {self.seed}"
        return hash_listing([facts.encode()])

    def _keys(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return one 64-bit key per image, (n,).

        Training images get even numbers and test images odd ones; the mixing is one-to-one, so no
        two images of a seed share a key.
        """
        numbers = indices.astype(np.uint64) * np.uint64(2) + np.uint64(self.split == "test")
        return _mix(numbers ^ _mix(np.array([self.seed % 2**64], dtype=np.uint64)))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit numbers one-to-one (SplitMix64); products overflow on purpose."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _uniform(keys: NDArray[np.uint64], stream: str) -> NDArray[np.float64]:
    """Return numbers in [0, 1), (n,), that depend on the key and the stream alone."""
    number = [*_FACTORS, *_VARIATIONS].index(stream) + 1
    bits = _mix(_mix(keys) + np.uint64(number)) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _sample_factors(keys: NDArray[np.uint64]) -> dict[str, NDArray[np.int64]]:
    """Draw the value of every factor, (n,) each."""
    return {
        name: (_uniform(keys, name) * len(values)).astype(np.int64)
        for name, values in _FACTORS.items()
    }


def _sample_figures(keys: NDArray[np.uint64]) -> Figures:
    """Draw everything that determines the images."""
    factors = _sample_factors(keys)
    row, column = np.divmod(factors["position"], 2)

    def within(
        bounds: Sequence[tuple[float, float]], name: str, stream: str
    ) -> NDArray[np.float64]:
        low, high = np.asarray(bounds)[factors[name]].T
        return np.asarray(low + (high - low) * _uniform(keys, stream))

    def kind(name: str, all_kinds: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each image's value among all that can be drawn."""
        return np.array([all_kinds.index(value) for value in _FACTORS[name]])[factors[name]]

    def everywhere(value: float) -> NDArray[np.float64]:
        return np.full(len(keys), value)

    def place(side: NDArray[np.int64], stream: str) -> NDArray[np.float64]:
        return _OFFSET * (2 * side - 1) + _WOBBLE * (2 * _uniform(keys, stream) - 1)

    background_color = list(BACKGROUND_COLORS).index(_BACKGROUND_COLOR)
    return Figures(
        shape=kind("shape", SHAPES),
        texture=kind("texture", TEXTURES),
        color=kind("color", list(COLORS)),
        background=kind("background", BACKGROUNDS),
        background_color=np.full(len(keys), background_color),
        radius=within(list(SIZES.values()), "size", "radius"),
        x=place(column, "x"),
        y=place(row, "y"),
        angle=np.deg2rad(within(list(ROTATIONS.values()), "rotation", "angle")),
        phase=_uniform(keys, "phase"),
        tint=_uniform(keys, "tint") - 0.5,
        slope=_uniform(keys, "slope"),
        spread=_uniform(keys, "spread"),
        light=np.array(list(LIGHTS.values()))[factors["light"]],
        texture_contrast=everywhere(_TEXTURE_CONTRAST),
        background_contrast=everywhere(_BACKGROUND_CONTRAST),
    )
