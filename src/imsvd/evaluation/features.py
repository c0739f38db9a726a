"""Features of whole datasets, extracted once and shared by all evaluators.

`extract_features` encodes the images of one source. `encode_splits` and `encode_split_shares` encode
the labeled training and test images that kNN and the linear probe compare.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from imsvd.datasets import (
    BadImage,
    ImageSource,
    Subset,
    UnreadableImage,
    open_source,
    small_image_size,
)
from imsvd.datasets.reading import load_batches
from imsvd.distributed import gather_lists, own_slice, together, world_size
from imsvd.encoder import Encoder, encoding_device
from imsvd.errors import InputError
from imsvd.processors import reading_processes
from imsvd.progress import progress_bar

LONGEST_STRIP = 16
"""Largest ratio of longer to shorter side; longer images are cut before they are resized."""

BATCH_SIZE = 256
"""Images encoded at a time."""


class Features(NamedTuple):
    """Encoded images with their labels and attributes, in the order of the source.

    Attributes:
        features: (n, width) float32, on the CPU.
        labels: (n,) int64 classes; None when unlabeled.
        attributes: further labels by name, (n,) int64 each.
        skipped: unreadable images; they have no row in any of the tensors.
    """

    features: Tensor
    labels: Tensor | None
    attributes: Mapping[str, Tensor]
    skipped: tuple[BadImage, ...] = ()


class _Batch(NamedTuple):
    """Consecutive images, (batch, 3, size, size) uint8, and their positions in the source."""

    images: Tensor
    indices: list[int]
    bad: list[BadImage]


def extract_features(  # noqa: PLR0913 - independent keyword arguments
    encode: Callable[[Tensor], Tensor],
    source: ImageSource,
    *,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
    batch_size: int = BATCH_SIZE,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
    images: Tensor | None = None,
) -> Features:
    """Encode every readable image of `source` in evaluation mode, without gradients.

    Unreadable images are skipped, never replaced: a replacement would be scored under another
    image's label. `Features.skipped` lists them.

    Args:
        encode: a module, or a method of one, that maps normalized images (batch, 3, size, size)
            to (batch, width). Modules run in evaluation mode; their previous mode is restored.
        source: the images.
        size: side of the images passed to the encoder, see `center_crop`.
        mean: per-channel mean, subtracted from values in [0, 1].
        std: per-channel standard deviation, divides the difference.
        device: where `encode` runs.
        batch_size: images per call of `encode`; the last call may get fewer.
        workers: processes that read images; 0 reads in the calling process.
        progress: called with (images done, images in total) after every batch.
        images: (n, 3, side, side) uint8, all images of `source` if they are already in memory and
            all readable.
    """
    total = len(source)
    encoded: Tensor | None = None
    kept: list[int] = []
    skipped: list[BadImage] = []
    channel_mean, channel_std = (
        torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)
        for values in (mean, std)
    )
    with torch.no_grad(), _evaluation_mode(encode):
        for batch in _batches(source, images, size, batch_size, workers):
            skipped += batch.bad
            if batch.indices:
                scaled = batch.images.to(device).float().div_(255)
                scaled.sub_(channel_mean).div_(channel_std)
                prepared = scaled.contiguous(memory_format=torch.channels_last)
                rows = encode(prepared).float().cpu()
                if encoded is None:
                    encoded = torch.empty(total, rows.shape[1])
                encoded[len(kept) : len(kept) + len(rows)] = rows
                kept += batch.indices
            if progress is not None:
                progress(len(kept) + len(skipped), total)
    if encoded is None:
        raise InputError(_nothing_to_encode(skipped))
    readable = torch.tensor(kept)
    return Features(
        features=encoded[: len(kept)],
        labels=None if source.labels is None else source.labels[readable],
        attributes={name: values[readable] for name, values in source.attributes.items()},
        skipped=tuple(skipped),
    )


def center_crop(image: Tensor, size: int) -> Tensor:
    """Return the standard evaluation crop (3, size, size) of an image (3, height, width) uint8.

    Resizes the shorter side to 256/224 of `size` (antialiased, bilinear) and crops the center. An
    image of `size` by `size`, such as CIFAR's, is returned unchanged.
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
    """Crop an extremely long image to its middle; enlarged as a whole, it could take gigabytes."""
    height, width = image.shape[-2:]
    longest = LONGEST_STRIP * min(height, width)
    if max(height, width) <= longest:
        return image
    middle: Tensor = transforms.center_crop(image, [min(height, longest), min(width, longest)])
    return middle


@contextmanager
def _evaluation_mode(encode: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Switch the module behind `encode`, if any, to evaluation mode, and restore it afterwards."""
    owner = getattr(encode, "__self__", encode)
    if not isinstance(owner, nn.Module):
        yield
        return
    # Modes differ within a network: a frozen part of a training network is in evaluation mode.
    modes = {module: module.training for module in owner.modules()}
    owner.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _batches(
    source: ImageSource, images: Tensor | None, size: int, batch_size: int, workers: int
) -> Iterator[_Batch]:
    """Yield all images in order, cropped to `size`; the last batch may be short."""
    total = len(source)
    ranges = [range(start, min(start + batch_size, total)) for start in range(0, total, batch_size)]
    if images is None:
        yield from load_batches(functools.partial(_read_batch, source, size), ranges, workers)
        return
    if len(images) != total:
        raise ValueError(f"{len(images)} images in memory for a source of {total}")
    for positions in ranges:
        chunk = images[positions.start : positions.stop]
        yield _Batch(_stack_crops(chunk, size), list(positions), [])


def _read_batch(source: ImageSource, size: int, positions: range) -> _Batch:
    """Read the images at `positions`; if that fails, read one by one and skip the unreadable."""
    try:
        return _Batch(_stack_crops(source.read_many(positions), size), list(positions), [])
    except UnreadableImage:
        pass
    images: list[Tensor] = []
    kept: list[int] = []
    bad: list[BadImage] = []
    for index in positions:
        try:
            images.append(source.read(index))
            kept.append(index)
        except UnreadableImage as error:
            bad.append(BadImage(index, error.identity, error.reason))
    return _Batch(_stack_crops(images, size), kept, bad)


def _stack_crops(images: Tensor | list[Tensor], size: int) -> Tensor:
    """Return the center crops of `images`, (batch, 3, size, size) uint8."""
    if isinstance(images, Tensor) and images.shape[-2:] == (size, size):
        return images
    crops = [center_crop(image, size) for image in images]
    return torch.stack(crops) if crops else torch.empty(0, 3, size, size, dtype=torch.uint8)


def _nothing_to_encode(skipped: Sequence[BadImage]) -> str:
    if not skipped:
        return "there are no images to evaluate on."
    first = skipped[0]
    return (
        f"none of the {len(skipped):,} images can be read; the first is {first.identity} "
        f"({first.reason})."
    )


class FeatureSplits(NamedTuple):
    """Features of labeled training and test images."""

    train: Features
    test: Features


def encode_splits(encoder: Encoder, data: str | Path, console: Console) -> FeatureSplits:
    """Encode both labeled splits of `data` in this process."""
    device = encoding_device()
    return FeatureSplits(
        *(
            encode_source(encoder, labeled_source(data, split), split, console, device)
            for split in ("train", "test")
        )
    )


def encode_split_shares(
    encoder: Encoder, data: str | Path, device: torch.device, console: Console, workers: int = 0
) -> FeatureSplits:
    """Encode this rank's share of both labeled splits of `data`; every rank must call this.

    Shares consist of whole batches, so each batch is computed as it would be by a single process.
    Small images are read in this process, others by `workers` processes.
    """
    shares = []
    for split in ("train", "test"):
        source = labeled_source(data, split)
        share = own_batches(source)
        readers = 0 if small_image_size(source) is not None else workers
        # Only the total is reported, once all ranks have finished.
        encode = functools.partial(
            encode_source, encoder, share, split, console, device, readers, report=False
        )
        encoded = together(encode if len(share) else lambda: None)
        empty = torch.empty(0, encoder.num_features)
        shares.append(encoded or Features(empty, share.labels, share.attributes))
        _report_skipped(sum(gather_lists([len(shares[-1].skipped)])), split, console)
    return FeatureSplits(*shares)


def encode_source(
    encoder: Encoder,
    source: ImageSource,
    name: str,
    console: Console,
    device: torch.device,
    workers: int | None = None,
    *,
    report: bool = True,
) -> Features:
    """Extract backbone features from all images of `source`, with a progress bar called `name`.

    By default, small images are read in this process and others by as many as fit the machine.
    """
    description = encoder.description
    if workers is None:
        workers = 0 if small_image_size(source) is not None else reading_processes(device.type)
    with progress_bar(console) as bar:
        task = bar.add_task(f"features of {name}", total=len(source))
        found = extract_features(
            encoder.to(device).backbone,
            source,
            size=description.size,
            mean=description.mean,
            std=description.std,
            device=device,
            workers=workers,
            progress=lambda done, _: bar.update(task, completed=done),
        )
    if report:
        _report_skipped(len(found.skipped), name, console)
    return found


def labeled_source(data: str | Path, split: Literal["train", "test"]) -> ImageSource:
    """Open one split of `data`, which must have labels."""
    source = open_source(data, split)
    if source.labels is None:
        raise InputError(
            f"{data} has no labels in its {split} split; use one sub-folder per class."
        )
    return source


def own_batches(source: ImageSource) -> ImageSource:
    """Return this rank's share of `source`, in whole batches of `BATCH_SIZE`."""
    if world_size() == 1:
        return source
    own = own_slice(math.ceil(len(source) / BATCH_SIZE))
    return Subset(source, range(own.start * BATCH_SIZE, min(own.stop * BATCH_SIZE, len(source))))


def _report_skipped(count: int, name: str, console: Console) -> None:
    if count:
        console.print(f"[yellow]Skipped {count} unreadable images of {name}.[/yellow]")


def check_features(split: str, features: Tensor) -> None:
    """Require finite features of shape (n, width); `split` names them in the error."""
    if features.ndim != 2:
        raise InputError(
            f"the {split} features have shape {tuple(features.shape)}; (n, width) is needed."
        )
    if not len(features):
        raise InputError(f"there are no {split} images to evaluate with.")
    # A NaN or infinity makes the sum non-finite, which avoids a mask as large as the features; the
    # second check is for sums that merely overflow.
    if not features.sum().isfinite() and not features.isfinite().all():
        raise InputError(
            f"the {split} features contain NaN or infinity because the encoder diverged; train a new "
            "one in another --out with a lower optimizer.lr or a longer optimizer.warmup_epochs."
        )


def check_labels(split: str, features: Tensor, labels: Tensor) -> None:
    """Require one label for each of the features (n, width)."""
    if labels.shape != features.shape[:1]:
        raise InputError(
            f"there are {len(features)} {split} features, but labels of shape "
            f"{tuple(labels.shape)}; one label for each is needed."
        )


def check_widths(train: Tensor, test: Tensor) -> None:
    """Require training and test features of the same width."""
    if train.shape[1] != test.shape[1]:
        raise InputError(
            f"training features have width {train.shape[1]} and test features {test.shape[1]}; "
            "use the same encoder for both."
        )


def chance(labels: Tensor) -> float:
    """Return the accuracy in percent of always predicting the most frequent of `labels` (n,)."""
    _, counts = torch.unique(labels, return_counts=True)
    return 100 * int(counts.max()) / len(labels)
