"""Training batches: an endless stream of shuffled epochs with random mirroring.

A step's images depend only on the seed and the step, so a resumed training continues as if it had not
been interrupted, with any number of worker processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from imsvd.datasets.reading import load_batches
from imsvd.evaluation.coco.data import CocoSplit, Target

Sample = tuple[Tensor, Target]
Batch = list[Sample]

_ORDER, _FLIP = range(2)


class TrainingStream:
    """Trainable images of a split, indexed by position in the stream of all epochs."""

    def __init__(self, split: CocoSplit, seed: int) -> None:
        self.split, self.seed = split, seed
        self._epoch = -1
        self._order: list[int] = []

    def __getitem__(self, position: int) -> Sample:
        epoch, offset = divmod(position, len(self.split.trainable))
        if epoch != self._epoch:
            places = np.random.default_rng((self.seed, _ORDER, epoch)).permutation(
                self.split.trainable
            )
            self._epoch, self._order = epoch, places.tolist()
        place = self._order[offset]
        sample = self.split.read(place), self.split.target(place)
        flip = np.random.default_rng((self.seed, _FLIP, position)).random() < 0.5
        return mirror(*sample) if flip else sample

    def batch(self, positions: Iterable[int]) -> Batch:
        """Read the images at `positions`."""
        return [self[position] for position in positions]


def mirror(image: Tensor, target: Target) -> Sample:
    """Mirror an image and its target horizontally."""
    width = image.shape[-1]
    left, top, right, bottom = target["boxes"].unbind(dim=1)
    boxes = torch.stack((width - right, top, width - left, bottom), dim=1)
    return image.flip(-1), target | {"boxes": boxes, "masks": target["masks"].flip(-1)}


def training_batches(
    stream: TrainingStream,
    steps: range,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
) -> Iterator[Batch]:
    """Yield this rank's batch of every step; `batch_size` counts the images of all ranks."""
    share = batch_size // world_size
    starts = (step * batch_size + rank * share for step in steps)
    return load_batches(stream.batch, (range(start, start + share) for start in starts), workers)


def to_device(batch: Batch, device: torch.device) -> tuple[list[Tensor], list[Target]]:
    """Move a batch to `device`, with images scaled to [0, 1]."""
    images = [image.to(device, non_blocking=True).float() / 255 for image, _ in batch]
    targets = [
        {name: value.to(device, non_blocking=True) for name, value in target.items()}
        for _, target in batch
    ]
    return images, targets
