"""Subjects and encodings for tests, without a training run."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from imsvd.datasets import ImageSource, ShapesSource, UnreadableImage
from imsvd.encoder import Encoder, EncoderDescription
from imsvd.explanations.encodings import Encodings, EncodingsCollector
from imsvd.explanations.subject import Progress, Subject, read_images
from imsvd.networks import BackboneSettings
from imsvd.pretrained import Backbone
from imsvd.views import cifar_views
from tests.export.networks import encoder

UNITS = (4, 3, 5)


def subject(folder: Path, source: ImageSource | None = None) -> Subject:
    """A small random encoder on a few drawn images."""
    options = {"channels": [8] * 4, "layers": [1] * 4}
    made = encoder(size=32, stem="stride_1", options=options)
    return Subject(
        made, source or ShapesSource("train", count=20), cifar_views(), 0, folder, "some key"
    )


class WithGaps(ShapesSource):
    """Some pictures cannot be read."""

    gaps = frozenset({0, 1, 2, 3, 9})

    def read(self, index: int) -> Tensor:
        if index in self.gaps:
            raise UnreadableImage(self.identity(index), "truncated")
        return super().read(index)

    def read_many(self, indices: object) -> list[Tensor]:
        return [self.read(index) for index in indices]  # type: ignore[attr-defined]


def encode(explained: Subject, progress: Progress | None = None) -> Encodings:
    """The encodings of a subject, without any other part."""
    found: Encodings = read_images(explained, [EncodingsCollector], progress)[EncodingsCollector]
    return found


def encodings(
    codes: NDArray[np.integer[Any]], features: NDArray[np.floating[Any]] | None = None
) -> Encodings:
    """Encodings of images of which only the codes, and perhaps features, matter."""
    count, variables = codes.shape
    every = np.arange(count)
    return Encodings(
        images=every,
        codes=codes.astype(np.uint8),
        confidence=np.ones((count, variables), dtype=np.float16),
        marginals=np.empty(0),
        histogram=np.zeros(100, dtype=np.int64),
        above=np.zeros(2, dtype=np.int64),
        top_images=np.empty((0, 0), dtype=np.int64),
        top_scores=np.empty((0, 0), dtype=np.float32),
        feature_rows=every,
        features=np.zeros((count, 2), np.float16)
        if features is None
        else features.astype(np.float16),
    )


def softmax_rows(count: int, units: tuple[int, ...], seed: int) -> Tensor:
    """(count, width) random probabilities in float64."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(count, size, generator=generator).double().mul(2) for size in units]
    return torch.cat([part.softmax(1) for part in parts], 1)


class RedFinder(nn.Module):
    """Sees how red each block of 4 × 4 pixels is, and pools; its truth is known."""

    num_features = 2

    def forward_features(self, images: Tensor) -> Tensor:
        red = (images[:, :1] - images[:, 1:2]).clamp_min(0)
        blue = (images[:, 2:] - images[:, 1:2]).clamp_min(0)
        return nn.functional.avg_pool2d(torch.cat([red, blue], 1), 4)

    def forward_head(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def red_finder() -> Encoder:
    """One variable: unit 0 for red, unit 1 for blue; unit 1 wins unless there is red."""
    description = EncoderDescription(
        method="imsvd",
        backbone=BackboneSettings(),
        projector=(2,),
        units=(2,),
        size=32,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )
    backbone = Backbone(RedFinder(), 2, (), 32, description.mean, description.std)
    made = Encoder(description, backbone).eval()
    linear = next(made.projector.children())
    with torch.no_grad():
        linear.get_parameter("weight").copy_(torch.tensor([[60.0, 0.0], [0.0, 20.0]]))
    return made


def red_squares(count: int, seed: int = 0) -> Tensor:
    """Gray images with one red 8 × 8 square each, somewhere, (count, 3, 32, 32) uint8."""
    random = np.random.default_rng(seed)
    images = torch.full((count, 3, 32, 32), 128, dtype=torch.uint8)
    for image in images:
        y, x = (4 * int(value) for value in random.integers(0, 7, 2))
        image[:, y : y + 8, x : x + 8] = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None]
    return images
