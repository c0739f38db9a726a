"""Features of every image and of its augmented views, computed once and kept on disk.

Images are encoded in batches that depend on their position alone. A cache that was interrupted, or
made by several processes, therefore holds the same bytes as any other.
"""

from __future__ import annotations

import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from imsvd.config import ComputeSettings
from imsvd.datasets import BadImage, ImageSource, Quarantine, UnreadableImage, read_or_replace
from imsvd.datasets.reading import image_key, load_batches
from imsvd.datasets.sources import DecodedImages
from imsvd.discretizing.feature_file import CacheFile, Half, open_features, size_text
from imsvd.distributed import gather_lists, largest, on_first_rank, rank, together, world_size
from imsvd.encoder import Encoder, weights_key
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import worker_count
from imsvd.engine.stopping import StopRequest
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation.features import center_crop
from imsvd.progress import clock, progress_bar
from imsvd.views import ViewsSettings, make_samples, normalize, stack_views, takes_fast_path

BATCH = 32
"""Images whose views are encoded together."""
DECODED = 8
"""Full-size images held in memory at a time."""
FLUSH_SECONDS = 10.0
"""Time between two flushes, and so the most work that a kill loses."""
MEASURED_BATCHES = 3
"""Batches after which the time that all of them will take is printed."""
EPOCH = 0
"""The epoch whose views are made; `imsvd explain` shows the same."""
_FLUSH, _STOP = 1, 2  # what a rank wants after a batch; the most urgent wish wins


class FeatureRequest(NamedTuple):
    """Everything that cached features depend on."""

    encoder: Encoder
    source: ImageSource
    views: ViewsSettings
    """All augmented views of an image."""
    seed: int
    weights: str = ""
    """The `weights_key` of the encoder, if it is known already."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, features per image and width of a feature."""
        return len(self.source), len(self.views.every) + 1, self.encoder.num_features

    def identity(self) -> dict[str, Any]:
        """Return what tells these features from others."""
        return {
            "encoder": self.encoder.description.model_dump(mode="json"),
            "weights": self.weights or weights_key(self.encoder),
            "images": image_key(self.source),
            "views": self.views.model_dump(mode="json"),
            "seed": self.seed,
            "shape": list(self.shape),
        }


def cached_features(
    request: FeatureRequest,
    folder: Path,
    compute: ComputeSettings,
    fabric: Fabric,
    quarantine: Quarantine,
    console: Console,
) -> Half:
    """Return the features, (images, views + 1, width), mapped from a file that is made if needed.

    Args:
        request: what to compute.
        folder: where the file is kept.
        compute: decides the number of workers.
        fabric: launched; its processes share the work.
        quarantine: counts unreadable images, which the next readable ones replace.
        console: where size, time and progress are shown.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; the same call continues.
    """
    file = CacheFile(request.identity(), request.shape, folder)
    on_first_rank(partial(file.prepare, console))
    done = together(file.done)
    total = len(request.source)
    if done >= total:
        console.print(f"Features: reusing {file.path}", highlight=False, soft_wrap=True)
    else:
        size = size_text(file.bytes)
        state = f"{done:,} of {total:,} images are done" if done else f"{total:,} images"
        console.print(
            f"Features: {state}, {request.shape[1]} each; {size} in {folder}",
            highlight=False,
            soft_wrap=True,
        )
        _fill(request, file, done, compute, fabric, quarantine, console)
    return together(partial(open_features, file.path))


def _fill(
    request: FeatureRequest,
    file: CacheFile,
    done: int,
    compute: ComputeSettings,
    fabric: Fabric,
    quarantine: Quarantine,
    console: Console,
) -> None:
    """Encode all images from `done` on, round by round: one batch per process."""
    total, world = len(request.source), world_size()
    rounds = range(done, total, BATCH * world)
    own = (_positions(first + BATCH * rank(), total) for first in rounds)
    workers = worker_count(compute, fabric, cheap=takes_fast_path(request.source))
    encoder = request.encoder.to(fabric.device).eval()
    encoder.backbone.to(memory_format=torch.channels_last)
    batches = load_batches(partial(read_views, *request[1:4]), own, workers)
    timer = _Timer(console, done, total)
    with closing(batches), StopRequest() as stop, progress_bar(console) as bar:
        timer.show(bar)
        flushed_at = time.monotonic()
        for first, batch in zip(rounds, batches, strict=True):
            together(partial(_encode_and_write, request, batch, file, fabric))
            quarantine.report(gather_lists(batch.bad))
            done = min(total, first + BATCH * world)
            timer.advance(done)
            due = done == total or time.monotonic() - flushed_at > FLUSH_SECONDS
            urgency = largest(_STOP if stop.requested else _FLUSH * due, fabric.device)
            if urgency:
                together(file.flush)
                if done == total or urgency == _STOP:
                    on_first_rank(partial(_require_same_images, request, file))
                on_first_rank(partial(file.advance, done))
                flushed_at = time.monotonic()
                if done < total and urgency == _STOP:
                    console.print(
                        f"Stopped after {done:,} images. Run the same command to resume.",
                        highlight=False,
                    )
                    raise Interrupted(stop.signal_number or signal.SIGINT)


def _require_same_images(request: FeatureRequest, file: CacheFile) -> None:
    """Raise, and delete the features, if images were changed since the first was read."""
    if image_key(request.source) != file.identity["images"]:
        file.discard()
        raise InputError(
            "the images changed while their features were computed, so that the features were deleted; "
            "run the same command again when the images are complete."
        )


class _Timer:
    """Prints the time that all images will take after the first batches, and moves the bar."""

    def __init__(self, console: Console, done: int, total: int) -> None:
        self.console, self.total = console, total
        self.began_with = self.done = done
        self.batches = 0

    def show(self, bar: Progress) -> None:
        """Begin."""
        self.bar = bar
        self.task = bar.add_task("features", total=self.total, completed=self.done)

    def advance(self, done: int) -> None:
        """Note that the first `done` images are complete."""
        self.done = done
        self.bar.update(self.task, completed=done)
        self.batches += 1
        if self.batches == 1:  # the first batch also starts workers and allocates memory
            self.since, self.began_with = time.monotonic(), done
        elif self.batches == MEASURED_BATCHES and done < self.total:
            speed = (done - self.began_with) / max(time.monotonic() - self.since, 1e-9)
            remaining = clock((self.total - done) / speed)
            self.console.print(
                f"About {remaining} for the features, at {speed:,.1f} images per second.",
                highlight=False,
            )


class ViewBatch(NamedTuple):
    """Images as an encoder sees them."""

    first: int
    """Position of the first image."""
    views: list[Tensor]
    """Per view, the plain image last, (batch, 3, size, size) uint8; empty if there is no image."""
    bad: list[BadImage]
    """Unreadable images that were replaced."""


def _positions(first: int, total: int) -> range:
    """Return the images of the batch that begins at `first`; none if that is beyond the last."""
    return range(min(first, total), min(first + BATCH, total))


def read_views(source: ImageSource, views: ViewsSettings, seed: int, positions: range) -> ViewBatch:
    """Decode each image once and make its views and its plain crop."""
    parts: list[list[Tensor]] = []
    bad: list[BadImage] = []
    for start in range(positions.start, positions.stop, DECODED):
        chosen = range(start, min(start + DECODED, positions.stop))
        images, found = _decode(source, chosen)
        bad += found
        samples = make_samples(DecodedImages(images), views, seed, EPOCH, list(images))
        plain = torch.stack(
            [center_crop(image, views.whole_image_size) for image in images.values()]
        )
        parts.append([*stack_views(samples), plain])
    return ViewBatch(positions.start, [torch.cat(part) for part in zip(*parts, strict=True)], bad)


def _decode(source: ImageSource, chosen: range) -> tuple[dict[int, Tensor], list[BadImage]]:
    try:
        return dict(zip(chosen, source.read_many(chosen), strict=True)), []
    except UnreadableImage:
        outcomes = [read_or_replace(source, index) for index in chosen]
    images = {index: image for index, (image, _, _) in zip(chosen, outcomes, strict=True)}
    return images, [item for _, _, found in outcomes for item in found]


@torch.no_grad()
def _encode_and_write(
    request: FeatureRequest, batch: ViewBatch, file: CacheFile, fabric: Fabric
) -> None:
    if not batch.views:
        return
    with fabric.autocast():
        features = torch.stack([_encode(request, levels) for levels in batch.views], dim=1)
    halves = features.to("cpu", torch.float16)
    if not bool(torch.isfinite(halves).all()):
        problem = "are not numbers" if bool(features.isnan().any()) else "half floats cannot hold"
        raise InputError(
            f"the encoder gives features that {problem}, near {request.source.identity(batch.first)}; "
            "use an encoder whose features are finite and below 65,504."
        )
    file.write(batch.first, halves.numpy())


def _encode(request: FeatureRequest, levels: Tensor) -> Tensor:
    encoder, view = request.encoder, request.views.views[0]
    images = levels.contiguous(memory_format=torch.channels_last).to(encoder.mean.device)
    try:
        features: Tensor = encoder.backbone(normalize(images, view))
    except (RuntimeError, AssertionError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(
            f"the encoder cannot take images of {view.size} pixels "
            f"({(str(error) or 'it fails').splitlines()[0].rstrip('.')}); choose another --size."
        ) from error
    if features.shape != (len(images), encoder.num_features):
        raise InputError(
            f"{encoder.description.backbone.name} gives features of shape {tuple(features.shape[1:])} for "
            f"an image instead of {encoder.num_features} numbers; choose a network that pools them."
        )
    return features.float()
