"""Small pictures held in memory as one tensor, decoded once by several threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from imsvd.datasets.quarantine import BadImage, Quarantine, read_or_replace
from imsvd.datasets.source import ImageSource, UnreadableImage

MAX_SIZE = 96
MAX_BYTES = 2 * 1024**3
_SAMPLE = 32
_CHUNK = 64


def fits_in_memory(source: ImageSource, size: int) -> bool:
    """Whether all pictures of side `size` stay below `MAX_BYTES`."""
    return len(source) * 3 * size * size <= MAX_BYTES


def small_image_size(source: ImageSource) -> int | None:
    """The side that all pictures seem to share, if they are square, small and fit in memory.

    It looks at the headers of a sample, spread evenly; `load_into_memory` verifies the rest.
    """
    step = max(1, len(source) // _SAMPLE)
    sizes: set[tuple[int, int]] = set()
    for index in range(0, len(source), step):
        try:
            sizes.add(source.size(index))
        except UnreadableImage:
            continue  # quarantined when it is really read
    if len(sizes) != 1:
        return None
    height, width = sizes.pop()
    if height != width or height > MAX_SIZE or not fits_in_memory(source, height):
        return None
    return height


def load_into_memory(
    source: ImageSource,
    quarantine: Quarantine,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor | None:
    """Read every picture, bad ones replaced as `read_or_replace` does and reported.

    Args:
        source: the pictures.
        quarantine: told of every bad picture; may raise `InputError`.
        size: their common side; None to find out with `small_image_size`.
        progress: called with (done, total) as the reading goes on.

    Returns:
        uint8 (n, 3, size, size), or None when some picture has another size, or they are too
        large: then they have to be read one by one.
    """
    size = size or small_image_size(source)
    if size is None:
        return None
    total = len(source)
    images = torch.empty(total, 3, size, size, dtype=torch.uint8)
    chunks = [range(start, min(start + _CHUNK, total)) for start in range(0, total, _CHUNK)]
    executor = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
    try:
        for chunk, (pictures, bad) in zip(
            chunks, executor.map(lambda chunk: _read_chunk(source, chunk), chunks), strict=True
        ):
            quarantine.report(bad)
            if any(picture.shape != images.shape[1:] for picture in pictures):
                return None
            torch.stack(pictures, out=images[chunk.start : chunk.stop])
            if progress is not None:
                progress(chunk.stop, total)
    finally:
        executor.shutdown(cancel_futures=True)
    return images


def _read_chunk(source: ImageSource, chunk: range) -> tuple[list[Tensor], list[BadImage]]:
    """The pictures of a chunk, each (3, height, width), and the bad ones met."""
    try:
        return source.read_many(chunk), []
    except UnreadableImage:
        outcomes = [read_or_replace(source, index) for index in chunk]
    return (
        [picture for picture, _, _ in outcomes],
        [item for _, _, bad in outcomes for item in bad],
    )
