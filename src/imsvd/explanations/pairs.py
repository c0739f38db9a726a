"""Two augmented views of every image, as in the first epoch of training, in bounded memory.

The views are keyed by (seed, epoch, image, view), so they are the same in batches of any size.
Images that cannot be read are left out, not replaced: a replacement would be counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from imsvd.datasets import ImageSource, UnreadableImage, small_image_size
from imsvd.explanations.subject import Progress, Subject
from imsvd.views import ViewsSettings, batch_views, image_views, normalize
from imsvd.views.samples import make_samples, stack_views

EPOCH = 0
"""The epoch of the training whose views are made again."""


class Pairs(NamedTuple):
    """Two normalized views, (batch, 3, size, size) each, and the images they are of."""

    first: Tensor
    second: Tensor
    indices: list[int]


def view_pairs(
    subject: Subject,
    indices: Sequence[int] | None = None,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> Iterator[Pairs]:
    """Yield the pairs of the images at `indices`, or of all; batches without an image are passed over."""
    chosen = range(len(subject.source)) if indices is None else indices
    # Local views take no part in the joint distribution.
    views = subject.views.model_copy(update={"local_views": 0})
    side = small_image_size(subject.source)
    for start in range(0, len(chosen), batch_size):
        part = [int(index) for index in chosen[start : start + batch_size]]
        if side is None:
            pairs = _streamed_pairs(subject.source, views, subject.seed, part)
        else:
            pairs = _small_pairs(subject.source, views, subject.seed, part, side)
        if pairs is not None:
            first, second, kept = pairs
            yield Pairs(first.to(subject.device), second.to(subject.device), kept)
        if progress is not None:
            progress(start + len(part), len(chosen))


def _streamed_pairs(
    source: ImageSource, views: ViewsSettings, seed: int, indices: list[int]
) -> Pairs | None:
    """Pairs of images of any size, made as training makes them."""
    samples = make_samples(source, views, seed, EPOCH, indices)
    good = [sample for sample in samples if not sample.bad]
    if not good:
        return None
    first, second = (
        normalize(levels, view) for levels, view in zip(stack_views(good), views.views, strict=True)
    )
    return Pairs(first, second, [sample.position for sample in good])


def _small_pairs(
    source: ImageSource, views: ViewsSettings, seed: int, indices: list[int], side: int
) -> Pairs | None:
    """Pairs of small images, a batch at a time; an image that has another size goes by itself."""
    regular: dict[int, Tensor] = {}
    made: list[tuple[list[Tensor], list[int]]] = []
    for index in indices:
        try:
            image = source.read(index)
        except UnreadableImage:
            continue
        if image.shape == (3, side, side):
            regular[index] = image
        else:
            single = image_views(image, views, seed=seed, epoch=EPOCH, index=index)
            made.append(([view[None] for view in single], [index]))
    if regular:
        images, numbers = torch.stack(list(regular.values())), np.array(list(regular))
        batched = batch_views(images, views, seed=seed, epoch=EPOCH, indices=numbers)
        made.insert(0, (batched, list(regular)))
    if not made:
        return None
    first, second = (torch.cat([batch[number] for batch, _ in made]) for number in (0, 1))
    return Pairs(first, second, [index for _, part in made for index in part])
