"""What is explained: an encoder with discrete variables, and the images that it is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from imsvd.datasets import ImageSource, UnreadableImage
from imsvd.datasets.sources import EncodedSource
from imsvd.datasets.streams import StreamSource
from imsvd.encoder import Encoder, EncoderDescription
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


SAMPLE = 64
"""Images whose content is looked at: others may have the same names."""


def explanation_key(
    description: EncoderDescription, weights: Mapping[str, Tensor], source: ImageSource
) -> str:
    """Short hashes of an encoder, and of the listing of the images and some of their contents."""
    return f"{encoder_key(description, weights)}-{_image_key(source)}"


def is_of_encoder(key: str, description: EncoderDescription, weights: Mapping[str, Tensor]) -> bool:
    """Whether `key` is that of an explanation of this encoder."""
    return key.partition("-")[0] == encoder_key(description, weights)


def encoder_key(description: EncoderDescription, weights: Mapping[str, Tensor]) -> str:
    """A short hash of an encoder's description and weights."""
    digest = hashlib.sha256(description.model_dump_json().encode())
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _image_key(source: ImageSource) -> str:
    digest = hashlib.sha256(source.fingerprint().encode())
    if isinstance(source, StreamSource):  # may be far away, and every image costs a whole chunk
        return digest.hexdigest()[:12]
    for index in range(0, len(source), max(1, -(-len(source) // SAMPLE))):
        digest.update(hashlib.sha256(_content(source, index)).digest())
    return digest.hexdigest()[:12]


def _content(source: ImageSource, index: int) -> bytes:
    try:
        if isinstance(source, EncodedSource):
            return source.encoded(index)
        return source.read(index).numpy().tobytes()
    except UnreadableImage:
        return b""
