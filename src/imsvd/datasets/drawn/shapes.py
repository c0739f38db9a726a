"""The built-in dataset `shapes`: one shape per image, with all generating factors known.

An image depends on (seed, split, index) alone. Shape, texture, color, size, position, rotation,
background and background color are drawn independently, so each can be studied separately.
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
    POSITIONS,
    ROTATIONS,
    SHAPES,
    SIZES,
    TEXTURES,
    Figures,
    draw,
)
from imsvd.datasets.sources import ImageSource, hash_listing

MIN_SIZE = 16
_COUNTS = {"train": 6000, "test": 2000}

# The order numbers the random streams: add new factors at the end, or all images change.
_FACTORS: dict[str, tuple[str, ...]] = {
    "shape": SHAPES,
    "texture": TEXTURES,
    "color": tuple(COLORS),
    "size": tuple(SIZES),
    "position": POSITIONS,
    "rotation": tuple(ROTATIONS),
    "background": BACKGROUNDS,
    "background_color": tuple(BACKGROUND_COLORS),
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
        self.classes = SHAPES

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
        """Return a hash of the arguments, which determine everything else."""
        return hash_listing(
            [f"shapes {self.split} {self.count} {self.pixels} {self.seed}".encode()]
        )

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
    row, column = np.divmod(factors["position"], 3)

    def within(
        bounds: Sequence[tuple[float, float]], name: str, stream: str
    ) -> NDArray[np.float64]:
        low, high = np.asarray(bounds)[factors[name]].T
        return np.asarray(low + (high - low) * _uniform(keys, stream))

    return Figures(
        shape=factors["shape"],
        texture=factors["texture"],
        color=factors["color"],
        background=factors["background"],
        background_color=factors["background_color"],
        radius=within(list(SIZES.values()), "size", "radius"),
        x=0.28 * (column - 1) + 0.1 * (_uniform(keys, "x") - 0.5),
        y=0.28 * (row - 1) + 0.1 * (_uniform(keys, "y") - 0.5),
        angle=np.deg2rad(within(list(ROTATIONS.values()), "rotation", "angle")),
        phase=_uniform(keys, "phase"),
        tint=_uniform(keys, "tint") - 0.5,
        slope=_uniform(keys, "slope"),
        spread=_uniform(keys, "spread"),
    )
