"""From positions in the data to views: every picture read once and decoded once for all its views.

With the extra `fast` installed, ordinary JPEGs are decoded no finer than their crops need and
augmented by `views.photographs`; every other picture is decoded whole. Without it, torchvision does
the augmentation. Which way a picture takes depends on the picture alone, never on its batch.
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
from imsvd.datasets.jpeg import (
    HAS_SIMPLEJPEG,
    REDUCTIONS,
    NotPlainError,
    PlainJpeg,
    decode_rows,
    read_header,
)
from imsvd.views import ViewParameters, ViewsSettings, make_levels, sample_parameters


class Sample(NamedTuple):
    """One picture, ready to be trained on."""

    position: int
    """Its position in the data, even where another picture replaces it."""
    views: list[Tensor]
    """(3, size, size) uint8 each, not yet normalized."""
    bad: list[BadImage]
    """The unreadable pictures met on the way to it."""


HAS_OPENCV = importlib.util.find_spec("cv2") is not None

# Drawing parameters costs as much for many pictures as for one; their files are held meanwhile.
_CHUNK = 64
# Decoding to the very size of the view would leave the filtering to the JPEG library, which is
# sharper: 1.7 levels off on average, with this reserve 0.9.
_RESERVE = 1.5


def make_samples(
    source: ImageSource, views: ViewsSettings, seed: int, epoch: int, indices: Sequence[int]
) -> list[Sample]:
    """The views of each picture, or of what replaces it where it cannot be read."""
    samples: list[Sample] = []
    for start in range(0, len(indices), _CHUNK):
        chunk = indices[start : start + _CHUNK]
        jpegs = [_plain_jpeg(source, index) for index in chunk]
        # The size of a picture that goes the general way is not known yet; it draws for itself.
        sizes = [jpeg.size if jpeg else (1, 1) for jpeg in jpegs]
        drawn = _draw(views, sizes, seed, epoch, chunk) if any(jpegs) else []
        for row, (index, jpeg) in enumerate(zip(chunk, jpegs, strict=True)):
            made = _views_of_jpeg(jpeg, drawn, row, views) if jpeg else None
            samples.append(
                Sample(index, made, []) if made else _general(source, views, seed, epoch, index)
            )
    return samples


def stack_views(views: Sequence[Tensor]) -> Tensor:
    """(n, 3, size, size) uint8 in channels_last memory format.

    Rows of pixels are stacked as they lie in memory; the network wants them so.
    """
    return torch.stack([view.permute(1, 2, 0) for view in views]).permute(0, 3, 1, 2)


def _draw(
    views: ViewsSettings,
    sizes: Sequence[tuple[int, int]],
    seed: int,
    epoch: int,
    indices: Sequence[int],
) -> list[ViewParameters]:
    """The parameters of every view, for pictures of the given (height, width)."""
    heights, widths = np.array(sizes).T
    slots = np.array(indices)
    return [
        sample_parameters(view, heights, widths, seed=seed, epoch=epoch, indices=slots, view=number)
        for number, view in enumerate(views.every)
    ]


def takes_fast_path(source: ImageSource) -> bool:
    """Whether the first picture goes the fast way, and most others therefore too."""
    return _plain_jpeg(source, 0) is not None


def _plain_jpeg(source: ImageSource, index: int) -> PlainJpeg | None:
    """The file of a picture if it can go the fast way."""
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
    """The views of a JPEG; None if it turns out to be damaged."""
    from imsvd.views.photographs import make_photograph_view  # noqa: PLC0415 - needs the extra

    pairs = list(zip(drawn, views.every, strict=True))
    bottom = max(int(parameters.top[row] + parameters.height[row]) for parameters in drawn)
    reduction = choose_reduction(
        [
            min(int(parameters.height[row]), int(parameters.width[row])) / view.size
            for parameters, view in pairs
        ]
    )
    try:
        image = decode_rows(jpeg, bottom, reduction)
    except NotPlainError:
        return None
    return [
        _as_tensor(make_photograph_view(image, parameters, row, view, reduction))
        for parameters, view in pairs
    ]


def choose_reduction(shrinkages: Sequence[float]) -> int:
    """How much smaller to decode, given how much each view shrinks its crop: 1, 2, 4 or 8."""
    least = min(shrinkages)
    return next((reduction for reduction in REDUCTIONS if least >= _RESERVE * reduction), 1)


def _general(
    source: ImageSource, views: ViewsSettings, seed: int, epoch: int, index: int
) -> Sample:
    """Any picture, decoded whole."""
    image, _, bad = read_or_replace(source, index)
    height, width = image.shape[-2:]
    # Keyed on the slot, not on the replacement: the rest of the epoch stays as it was.
    drawn = _draw(views, [(height, width)], seed, epoch, [index])
    pairs = zip(drawn, views.every, strict=True)
    if not HAS_OPENCV:
        made = [make_levels(image, parameters, 0, view) for parameters, view in pairs]
        return Sample(index, made, bad)
    from imsvd.views.photographs import make_photograph_view  # noqa: PLC0415 - needs the extra

    pixels = image.permute(1, 2, 0).numpy()
    made = [
        _as_tensor(make_photograph_view(pixels, parameters, 0, view)) for parameters, view in pairs
    ]
    return Sample(index, made, bad)


def _as_tensor(view: npt.NDArray[np.uint8]) -> Tensor:
    """(3, size, size) from (size, size, 3), without copying."""
    return torch.from_numpy(view).permute(2, 0, 1)
