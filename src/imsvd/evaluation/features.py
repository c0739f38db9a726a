"""Features of a whole collection of images, extracted once and shared by all evaluators."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from imsvd.datasets.quarantine import BadImage
from imsvd.datasets.source import ImageSource, UnreadableImage
from imsvd.datasets.workers import load_batches
from imsvd.errors import InputError

LONGEST_STRIP = 16
"""An image longer than so many times its shorter side is cut before it is resized."""


class Features(NamedTuple):
    """Encoded images with everything known of them, row by row, in the order of the source.

    Attributes:
        features: (n, width) float32, on the CPU.
        labels: (n,) int64 classes; None when unlabeled.
        attributes: further known factors, (n,) int64 each.
        skipped: images that could not be read; they have no row in any of the tensors.
    """

    features: Tensor
    labels: Tensor | None
    attributes: Mapping[str, Tensor]
    skipped: tuple[BadImage, ...] = ()


class _Batch(NamedTuple):
    """Consecutive images of one size, (batch, 3, size, size) uint8, and where they come from."""

    images: Tensor
    indices: list[int]
    bad: list[BadImage]


def extract_features(  # noqa: PLR0913 - one call that says all there is to say, by keyword
    encode: Callable[[Tensor], Tensor],
    source: ImageSource,
    *,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
    batch_size: int = 256,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
    images: Tensor | None = None,
) -> Features:
    """Encode every readable image of `source` in evaluation mode, without gradients.

    Unreadable images are left out, never replaced: a replacement would be scored under the label
    of another image. They are listed in `Features.skipped`.

    Args:
        encode: an encoder, or a method of one, that maps normalized images
            (batch, 3, size, size) to (batch, width). An `nn.Module` is put into evaluation mode and
            back into the mode it was in.
        source: the images.
        size: side of the images given to the encoder, see `center_crop`.
        mean: per channel, subtracted from values in [0, 1].
        std: per channel, divides what remains.
        device: where `encode` runs.
        batch_size: images per call of `encode`; the last call may get fewer.
        workers: processes that read images; 0 reads in this one.
        progress: called with (images done, images in total) after every batch.
        images: (n, 3, side, side) uint8, all images of `source` if they are already in memory;
            none of them a stand-in for an unreadable one, which would be scored as if it were.
    """
    total = len(source)
    encoded: Tensor | None = None
    kept: list[int] = []
    skipped: list[BadImage] = []
    prepare = _Normalizer(mean, std, device)
    with torch.no_grad(), _evaluation_mode(encode):
        for batch in _batches(source, images, size, batch_size, workers):
            skipped += batch.bad
            if batch.indices:
                rows = encode(prepare(batch.images)).float().cpu()
                if encoded is None:
                    encoded = torch.empty(total, rows.shape[1])
                encoded[len(kept) : len(kept) + len(rows)] = rows
                kept += batch.indices
            if progress is not None:
                progress(len(kept) + len(skipped), total)
    if encoded is None:
        raise InputError(_nothing_to_encode(skipped))
    return _assemble(encoded[: len(kept)], source, kept, skipped)


def center_crop(image: Tensor, size: int) -> Tensor:
    """The standard evaluation crop of an image (3, height, width) uint8, (3, size, size).

    The shorter side is resized to 256/224 of `size` (antialiased, bilinear) and the center cut out.
    An image that already is `size` by `size`, as CIFAR's are, is returned as it is.
    """
    if image.shape[-2:] == (size, size):
        return image
    shorter = round(size * 256 / 224)
    resized = transforms.resize(
        _cut_strip(image), [shorter], InterpolationMode.BILINEAR, antialias=True
    )
    cropped: Tensor = transforms.center_crop(resized, [size, size])
    return cropped


def _cut_strip(image: Tensor) -> Tensor:
    """Leave the middle of an extremely long image; all of it, enlarged, could need gigabytes."""
    height, width = image.shape[-2:]
    longest = LONGEST_STRIP * min(height, width)
    if max(height, width) <= longest:
        return image
    middle: Tensor = transforms.center_crop(image, [min(height, longest), min(width, longest)])
    return middle


class _Normalizer:
    """Moves uint8 images to a device as normalized floats, in the layout convolutions prefer."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: torch.device | str
    ) -> None:
        self._device = device
        self._mean = torch.tensor(mean, dtype=torch.float32, device=device).view(-1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32, device=device).view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalize (batch, 3, size, size) uint8 images."""
        scaled = images.to(self._device).float().div_(255).sub_(self._mean).div_(self._std)
        return scaled.contiguous(memory_format=torch.channels_last)


@contextmanager
def _evaluation_mode(encode: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Put the module behind `encode`, if there is one, into evaluation mode for a while."""
    owner = getattr(encode, "__self__", encode)
    if not isinstance(owner, nn.Module):
        yield
        return
    # Each part has its own mode: a frozen part of a training network is already evaluating.
    modes = {module: module.training for module in owner.modules()}
    owner.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


class _StreamedBatches:
    """Batches read from a source, so that a worker's unit of work is a whole batch."""

    def __init__(self, source: ImageSource, size: int, batch_size: int) -> None:
        self._source = source
        self._size = size
        self._batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self._source) / self._batch_size)

    def __getitem__(self, number: int) -> _Batch:
        start = number * self._batch_size
        indices = list(range(start, min(start + self._batch_size, len(self._source))))
        bad: list[BadImage] = []
        try:
            images = self._source.read_many(indices)
        except UnreadableImage:
            images, indices, bad = self._read_one_by_one(indices)
        return _Batch(_stack_crops(images, self._size), indices, bad)

    def _read_one_by_one(
        self, indices: Sequence[int]
    ) -> tuple[list[Tensor], list[int], list[BadImage]]:
        """The readable images of `indices`, their indices, and the unreadable ones."""
        images: list[Tensor] = []
        kept: list[int] = []
        bad: list[BadImage] = []
        for index in indices:
            try:
                images.append(self._source.read(index))
                kept.append(index)
            except UnreadableImage as error:
                bad.append(BadImage(index, error.identity, error.reason))
        return images, kept, bad


def _batches(
    source: ImageSource, images: Tensor | None, size: int, batch_size: int, workers: int
) -> Iterator[_Batch]:
    """All images in order, at the size the encoder wants, the short last batch included."""
    if images is not None:
        if len(images) != len(source):
            raise ValueError(f"{len(images)} images in memory for a source of {len(source)}")
        for start in range(0, len(images), batch_size):
            chunk = images[start : start + batch_size]
            indices = list(range(start, start + len(chunk)))
            yield _Batch(_stack_crops(chunk, size), indices, [])
        return
    streamed = _StreamedBatches(source, size, batch_size)
    yield from load_batches(streamed.__getitem__, range(len(streamed)), workers)


def _stack_crops(images: Tensor | list[Tensor], size: int) -> Tensor:
    """Center crops of all `images`, (batch, 3, size, size) uint8."""
    if isinstance(images, Tensor) and images.shape[-2:] == (size, size):
        return images
    crops = [center_crop(image, size) for image in images]
    return torch.stack(crops) if crops else torch.empty(0, 3, size, size, dtype=torch.uint8)


def _assemble(
    encoded: Tensor, source: ImageSource, kept: list[int], skipped: list[BadImage]
) -> Features:
    """Join the encoded rows (n, width) with the labels and attributes of the `kept` images."""
    rows = torch.tensor(kept)
    return Features(
        features=encoded,
        labels=None if source.labels is None else source.labels[rows],
        attributes={name: values[rows] for name, values in source.attributes.items()},
        skipped=tuple(skipped),
    )


def _nothing_to_encode(skipped: Sequence[BadImage]) -> str:
    if not skipped:
        return "There are no images to evaluate on."
    first = skipped[0]
    return (
        f"None of the {len(skipped):,} images can be read; the first is {first.identity} "
        f"({first.reason})."
    )
