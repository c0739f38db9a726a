"""What is explained: an encoder with discrete variables, and the images that it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from imsvd.datasets import ImageSource, UnreadableImage
from imsvd.encoder import Encoder
from imsvd.evaluation.features import center_crop
from imsvd.information import soft_discretize
from imsvd.views import ViewsSettings

Progress = Callable[[int, int], None]
"""Called with (done, total) as work goes on."""


class Subject(NamedTuple):
    """Everything that the parts of an explanation share."""

    encoder: Encoder
    source: ImageSource
    views: ViewsSettings
    """The views of the training, of which pairs are made again."""
    seed: int
    folder: Path
    """Where results go."""
    key: str
    """Names encoder and data; results with another key are out of date."""

    @property
    def units(self) -> tuple[int, ...]:
        """Units of each variable."""
        return self.encoder.description.units

    @property
    def device(self) -> torch.device:
        """Where the encoder is."""
        return self.encoder.mean.device

    def picture(self, index: int, size: int | None = None) -> Tensor:
        """An image as the encoder sees it whole, (3, size, size) uint8; raises `UnreadableImage`."""
        return center_crop(self.source.read(index), size or self.encoder.description.size)


class Pictures(NamedTuple):
    """Readable images, (n, 3, size, size) uint8, and where they are in the source."""

    images: Tensor
    indices: list[int]


def evenly_spaced(total: int, wanted: int) -> list[int]:
    """At most `wanted` of the numbers below `total`, spread evenly, the first always among them."""
    count = min(total, wanted)
    return [number * total // count for number in range(count)]


def read_pictures(subject: Subject, indices: list[int]) -> Pictures:
    """Read images as the encoder sees them; those that cannot be read are left out."""
    images, kept = [], []
    for index in indices:
        try:
            images.append(subject.picture(index))
            kept.append(index)
        except UnreadableImage:
            continue
    size = subject.encoder.description.size
    stacked = torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)
    return Pictures(stacked, kept)


def view_probabilities(encoder: Encoder, views: Tensor) -> Tensor:
    """q (Eq. 1) of views that are normalized already, (batch, width)."""
    return soft_discretize(encoder.projector(encoder.backbone(views)), encoder.description.units)


def unit_starts(units: tuple[int, ...]) -> list[int]:
    """Where each variable begins among all units."""
    starts = [0]
    for size in units[:-1]:
        starts.append(starts[-1] + size)
    return starts
