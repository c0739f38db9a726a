"""From positions in the data to batches of views; each image is read and decoded once.

With the extra `fast` installed, ordinary JPEGs are decoded no finer than their crops need and
augmented with OpenCV (`views.photographs`); all other images are decoded at full size. Without the
extra, torchvision augments every image. The path taken depends on the image alone, never on its
batch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from imsvd.datasets import (
    BadImage,
    EncodedSource,
    ImageSource,
    Subset,
    UnreadableImage,
    read_or_replace,
)
from imsvd.datasets.decoding import (
    HAS_SIMPLEJPEG,
    REDUCTIONS,
    NotPlainError,
    PlainJpeg,
    decode_rows,
    read_header,
)
from imsvd.views.parameters import ViewParameters, sample_views
from imsvd.views.settings import ViewsSettings
from imsvd.views.single import make_levels

HAS_OPENCV = importlib.util.find_spec("cv2") is not None

# Drawing parameters costs the same for one image as for many; their files are held meanwhile.
_CHUNK = 64
# Decoding to exactly the size of the view would leave the filtering to the JPEG library, which is
# sharper: views then differ by 1.7 levels on average, with this margin by 0.9.
_MARGIN = 1.5


class Sample(NamedTuple):
    """The views of one image."""

    position: int
    """Position in the data, even where another image replaces it."""
    views: list[Tensor]
    """One (3, size, size) uint8 tensor per view."""
    bad: list[BadImage]
    """The unreadable images that this one replaces."""


class Batch(NamedTuple):
    """The views of several images."""

    views: list[Tensor]
    """One (batch, 3, size, size) tensor per view."""
    samples: Tensor
    """(batch,) positions of the images in the data."""
    bad: list[BadImage]
    """Unreadable images that were replaced."""


def read_batch(
    source: ImageSource, views: ViewsSettings, seed: int, epoch: int, indices: Sequence[int]
) -> Batch:
    """Read images and make their views, uint8 and not yet normalized."""
    samples = make_samples(source, views, seed, epoch, indices)
    bad = [item for sample in samples for item in sample.bad]
    return Batch(stack_views(samples), torch.tensor([sample.position for sample in samples]), bad)


def make_samples(
    source: ImageSource, views: ViewsSettings, seed: int, epoch: int, indices: Sequence[int]
) -> list[Sample]:
    """Make the views of each image, or of its replacement if it cannot be read."""
    samples: list[Sample] = []
    for start in range(0, len(indices), _CHUNK):
        chunk = [int(index) for index in indices[start : start + _CHUNK]]
        jpegs = [_plain_jpeg(source, index) for index in chunk]
        # The size of any other image is not known yet; its parameters are drawn once it is.
        sizes = [jpeg.size if jpeg else (1, 1) for jpeg in jpegs]
        drawn = _draw(views, sizes, seed, epoch, chunk) if any(jpegs) else []
        for row, (index, jpeg) in enumerate(zip(chunk, jpegs, strict=True)):
            made = _views_of_jpeg(jpeg, drawn, row, views) if jpeg else None
            samples.append(
                Sample(index, made, []) if made else _sample(source, views, seed, epoch, index)
            )
    return samples


def stack_views(samples: Sequence[Sample]) -> list[Tensor]:
    """Stack the samples: one (n, 3, size, size) uint8 tensor per view, in channels_last format."""
    # Pixels are stacked in the order they have in memory, which is also the one networks want.
    return [
        torch.stack([view.permute(1, 2, 0) for view in views]).permute(0, 3, 1, 2)
        for views in zip(*(sample.views for sample in samples), strict=True)
    ]


def takes_fast_path(source: ImageSource) -> bool:
    """Return whether the first image is an ordinary JPEG, as most others then are."""
    return _plain_jpeg(source, 0) is not None


def choose_reduction(shrinkages: Sequence[float]) -> int:
    """Choose the factor (1, 2, 4 or 8) to decode by, given how much each view shrinks its crop."""
    least = min(shrinkages)
    return next((reduction for reduction in REDUCTIONS if least >= _MARGIN * reduction), 1)


def _draw(
    views: ViewsSettings,
    sizes: Sequence[tuple[int, int]],
    seed: int,
    epoch: int,
    indices: Sequence[int],
) -> list[ViewParameters]:
    """Draw the parameters of every view for images of the given (height, width)."""
    heights, widths = np.array(sizes).T
    slots = np.array(indices)
    return sample_views(views, heights, widths, seed=seed, epoch=epoch, indices=slots)


def _plain_jpeg(source: ImageSource, index: int) -> PlainJpeg | None:
    """Return the encoded image if it can take the fast path."""
    if isinstance(source, Subset):
        return _plain_jpeg(source.source, source.indices[index])
    if not (HAS_SIMPLEJPEG and HAS_OPENCV and isinstance(source, EncodedSource)):
        return None
    try:
        return read_header(source.encoded(index))
    except (UnreadableImage, NotPlainError):
        return None


def _views_of_jpeg(
    jpeg: PlainJpeg, drawn: Sequence[ViewParameters], row: int, views: ViewsSettings
) -> list[Tensor] | None:
    """Make the views of a JPEG; None if it turns out to be damaged."""
    bottom = max(int(parameters.top[row] + parameters.height[row]) for parameters in drawn)
    reduction = choose_reduction(
        [
            min(int(parameters.height[row]), int(parameters.width[row])) / view.size
            for parameters, view in zip(drawn, views.every, strict=True)
        ]
    )
    try:
        pixels = decode_rows(jpeg, bottom, reduction)
    except NotPlainError:
        return None
    return _photograph_views(pixels, drawn, row, views, reduction)


def _sample(source: ImageSource, views: ViewsSettings, seed: int, epoch: int, index: int) -> Sample:
    """Make the views of any image, decoded at full size."""
    image, _, bad = read_or_replace(source, index)
    height, width = image.shape[-2:]
    # Keyed on the position, not on the replacement: the rest of the epoch stays as it was.
    drawn = _draw(views, [(height, width)], seed, epoch, [index])
    if HAS_OPENCV:
        pixels = image.permute(1, 2, 0).numpy()
        return Sample(index, _photograph_views(pixels, drawn, 0, views), bad)
    pairs = zip(drawn, views.every, strict=True)
    return Sample(
        index, [make_levels(image, parameters, 0, view) for parameters, view in pairs], bad
    )


def _photograph_views(
    pixels: npt.NDArray[np.uint8],
    drawn: Sequence[ViewParameters],
    row: int,
    views: ViewsSettings,
    reduction: int = 1,
) -> list[Tensor]:
    """Augment (height, width, 3) pixels with OpenCV: one (3, size, size) tensor per view."""
    from imsvd.views.photographs import make_photograph_view  # noqa: PLC0415 - needs the extra

    return [
        torch.from_numpy(make_photograph_view(pixels, parameters, row, view, reduction)).permute(
            2, 0, 1
        )
        for parameters, view in zip(drawn, views.every, strict=True)
    ]
