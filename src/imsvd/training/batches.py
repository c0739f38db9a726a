"""Batches of views, step by step, the same on any number of workers and ranks.

The global batch of a step is a slice of the epoch's permutation; a rank takes its contiguous part
of it. Permutation and augmentation are functions of (seed, epoch, sample index, view) alone, so
starting at any step gives exactly what an uninterrupted run would have seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from imsvd.datasets import BadImage, ImageSource
from imsvd.datasets.workers import load_batches
from imsvd.errors import InputError
from imsvd.training.samples import Sample, make_samples, stack_views
from imsvd.views import (
    ViewsSettings,
    keyed_uniforms,
    make_views_batched,
    normalize,
    sample_parameters,
)

Indices = npt.NDArray[np.int64]

ORDER_STREAM = 2**16 - 1
"""The "view" number whose random stream shuffles the epoch; no real view has it."""


class Batch(NamedTuple):
    """One rank's part of a step."""

    views: list[Tensor]
    """One (batch, 3, size, size) tensor per view, on the training device."""
    samples: Tensor
    """Positions of the images in the data, (batch,), on the training device."""
    bad: list[BadImage]
    """Unreadable images that were met and replaced."""


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
            keys = keyed_uniforms(self._seed, epoch, every, view=ORDER_STREAM, draws=1)[:, 0]
            self._cached = epoch, np.argsort(keys, kind="stable")
        return self._cached[1]


class Batches(ABC):
    """Gives the batches of steps `first`, `first + 1`, … up to `last` (exclusive)."""

    def __init__(
        self, order: EpochOrder, views: ViewsSettings, seed: int, device: torch.device
    ) -> None:
        self.order, self.views, self.seed, self.device = order, views, seed, device

    @abstractmethod
    def steps(self, first: int, last: int) -> Iterator[Batch]:
        """Yield one `Batch` per step."""


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
        """Yield one `Batch` per step."""
        for step in range(first, last):
            epoch, indices = self.order.indices(step)
            samples = torch.from_numpy(indices).to(self.device)
            images = self.images[samples]
            sides = np.full(len(indices), images.shape[-1])
            views = [
                make_views_batched(
                    images,
                    sample_parameters(
                        view,
                        sides,
                        sides,
                        seed=self.seed,
                        epoch=epoch,
                        indices=indices,
                        view=number,
                    ),
                    view,
                )
                for number, view in enumerate(self.views.every)
            ]
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
        """Yield one `Batch` per step."""
        batches = load_batches(
            _ViewDataset(self.source, self.views, self.seed),
            _StepSampler(self.order, first, last),
            _collate,
            self.workers,
            pin_memory=self.device.type == "cuda",
        )
        # Closed here, not when it is collected: workers end when this generator does.
        with closing(batches):
            for batch in batches:
                views = [
                    normalize(levels.to(self.device, non_blocking=True), view)
                    for levels, view in zip(batch.views, self.views.every, strict=True)
                ]
                samples = batch.samples.to(self.device, non_blocking=True)
                yield Batch(views, samples, batch.bad)


class _StepSampler(Sampler[list[tuple[int, int]]]):
    """Lists (epoch, index) for every step, so that one loader runs through all epochs."""

    def __init__(self, order: EpochOrder, first: int, last: int) -> None:
        self.order, self.first, self.last = order, first, last

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in range(self.first, self.last):
            epoch, indices = self.order.indices(step)
            yield [(epoch, int(index)) for index in indices]

    def __len__(self) -> int:
        return self.last - self.first


class _ViewDataset(Dataset[Sample]):
    """Reads images and makes their views."""

    def __init__(self, source: ImageSource, views: ViewsSettings, seed: int) -> None:
        self.source, self.views, self.seed = source, views, seed

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[Sample]:
        """All samples of a step at once, as a loader asks for them: their epoch is the same."""
        epoch, _ = keys[0]
        return make_samples(self.source, self.views, self.seed, epoch, [index for _, index in keys])


def _collate(samples: list[Sample]) -> Batch:
    """A batch whose views are bytes still; the trainer's process normalizes them on its device."""
    views = [stack_views(view) for view in zip(*(sample.views for sample in samples), strict=True)]
    positions = torch.tensor([sample.position for sample in samples])
    return Batch(views, positions, [bad for sample in samples for bad in sample.bad])
