"""Batches of views, step by step, the same on any number of workers and ranks.

The global batch of a step is a slice of the epoch's permutation, and a rank takes a contiguous part
of it. Permutation and augmentation depend only on (seed, epoch, sample index, view), so training can
start at any step and see exactly what an uninterrupted run would have seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor

from imsvd.config import ComputeSettings
from imsvd.datasets import ImageSource, Quarantine, load_into_memory, small_image_size
from imsvd.datasets.reading import load_batches
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import worker_count
from imsvd.errors import InputError
from imsvd.progress import progress_bar
from imsvd.views import (
    Batch,
    ViewsSettings,
    batch_views,
    keyed_order,
    normalize,
    read_batch,
)
from imsvd.views.batched import send
from imsvd.views.samples import takes_fast_path

Indices = npt.NDArray[np.int64]

ORDER_STREAM = 2**16 - 1
"""Number of the random stream that shuffles an epoch; no real view has it."""


class EpochOrder:
    """Which samples each step trains on; the incomplete last batch of an epoch is dropped."""

    def __init__(
        self, count: int, batch_size: int, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        if count < batch_size:
            raise InputError(
                f"training.batch_size={batch_size} is larger than the dataset of {count} images; "
                + (
                    f"set it to {count} or less, or give more images."
                    if count > 1
                    else "give more."
                )
            )
        if batch_size % world:
            raise InputError(
                f"training.batch_size={batch_size} does not divide by {world} processes; "
                f"set it to {batch_size // world * world} or {(batch_size // world + 1) * world}."
            )
        self.steps_per_epoch = count // batch_size
        self._count, self._batch_size, self._seed = count, batch_size, seed
        self._rank, self._local = rank, batch_size // world
        self._cached: tuple[int, Indices] | None = None

    def indices(self, step: int) -> tuple[int, Indices]:
        """Return the epoch of `step` and this rank's sample indices."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self._batch_size + self._rank * self._local
        return epoch, self._permutation(epoch)[start : start + self._local]

    def _permutation(self, epoch: int) -> Indices:
        if self._cached is None or self._cached[0] != epoch:
            every = np.arange(self._count, dtype=np.int64)
            self._cached = epoch, keyed_order(self._seed, epoch, every, ORDER_STREAM)
        return self._cached[1]


def build_batches(
    source: ImageSource,
    quarantine: Quarantine,
    order: EpochOrder,
    views: ViewsSettings,
    seed: int,
    compute: ComputeSettings,
    fabric: Fabric,
    console: Console,
) -> Batches:
    """Return the batches of a training: from memory if the images are small, otherwise streamed."""
    if small_image_size(source) is not None:
        with progress_bar(console) as bar:
            task = bar.add_task("reading images", total=len(source))
            images = load_into_memory(
                source, quarantine, progress=lambda done, _: bar.update(task, completed=done)
            )
        if images is not None:
            return MemoryBatches(images, order, views, seed, fabric.device)
    workers = worker_count(compute, fabric, cheap=takes_fast_path(source))
    return StreamedBatches(source, order, views, seed, fabric.device, workers)


class Batches(ABC):
    """The batches of any range of steps."""

    def __init__(
        self, order: EpochOrder, views: ViewsSettings, seed: int, device: torch.device
    ) -> None:
        self.order, self.views, self.seed, self.device = order, views, seed, device

    @abstractmethod
    def steps(self, first: int, last: int) -> Iterator[Batch]:
        """Yield the batches of steps `first` to `last`, without the last."""


class MemoryBatches(Batches):
    """Small images held as one uint8 tensor and augmented a whole batch at a time."""

    def __init__(
        self,
        images: Tensor,
        order: EpochOrder,
        views: ViewsSettings,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(order, views, seed, device)
        self.images = images.to(device)

    def steps(self, first: int, last: int) -> Iterator[Batch]:
        """Yield the batches of steps `first` to `last`, without the last."""
        for step in range(first, last):
            epoch, indices = self.order.indices(step)
            samples = send({"samples": indices}, self.device)["samples"]
            images = self.images[samples]
            views = batch_views(images, self.views, seed=self.seed, epoch=epoch, indices=indices)
            yield Batch(views, samples, [])


class StreamedBatches(Batches):
    """Images of any size, read and augmented one by one in worker processes."""

    def __init__(
        self,
        source: ImageSource,
        order: EpochOrder,
        views: ViewsSettings,
        seed: int,
        device: torch.device,
        workers: int,
    ) -> None:
        super().__init__(order, views, seed, device)
        self.source, self.workers = source, workers

    def steps(self, first: int, last: int) -> Iterator[Batch]:
        """Yield the batches of steps `first` to `last`, without the last."""
        read = partial(_read_step, self.source, self.views, self.seed)
        keys = (self.order.indices(step) for step in range(first, last))
        pin_memory = self.device.type == "cuda"
        batches = load_batches(read, keys, self.workers, pin_memory=pin_memory)
        # Closed here rather than by the garbage collector: workers end with this generator.
        with closing(batches):
            for batch in batches:
                views = [
                    normalize(levels.to(self.device, non_blocking=True), view)
                    for levels, view in zip(batch.views, self.views.every, strict=True)
                ]
                samples = batch.samples.to(self.device, non_blocking=True)
                yield Batch(views, samples, batch.bad)


def _read_step(
    source: ImageSource, views: ViewsSettings, seed: int, step: tuple[int, Indices]
) -> Batch:
    """Read a step's images in a worker, given its epoch and sample indices."""
    epoch, indices = step
    return read_batch(source, views, seed, epoch, indices.tolist())
