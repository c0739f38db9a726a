"""The nearest images of every image by features, found in blocks so that time grows with the number of images."""

from __future__ import annotations

import numpy as np
import torch
from rich.console import Console
from torch import nn

from imsvd.discretizing.feature_file import Half, Rows, read_features
from imsvd.distributed import gather_lists, rank, world_size
from imsvd.evaluation import nearest_neighbors
from imsvd.progress import progress_bar
from imsvd.views import keyed_order

BLOCK = 16_384
"""Most images compared with each other; of more images, random blocks of this size are."""
QUERIES = 512
"""Images whose neighbors are searched at a time."""
BLOCK_STREAM = 2**16 - 4
"""Number of the random stream that deals images to blocks; no real view has it."""


def feature_neighbors(
    features: Half,
    rows: Rows,
    count: int,
    seed: int,
    compare: nn.Module,
    device: torch.device,
    console: Console,
) -> Rows:
    """Return the images most similar to each image of `rows` by cosine, (rows, count).

    Processes share the blocks, and all of them get the whole result.

    Args:
        features: (images, views + 1, width); the plain image, which is last, is compared.
        rows: images to compare with each other.
        count: neighbors per image, at most one less than there are images in a block.
        seed: decides the blocks.
        compare: maps features to the vectors that are compared, on `device`.
        device: where to compare.
        console: where to show progress.
    """
    blocks = np.array_split(keyed_order(seed, 0, rows, BLOCK_STREAM), -(-len(rows) // BLOCK))
    found: list[tuple[int, Rows]] = []
    with progress_bar(console) as bar:
        own = range(rank(), len(blocks), world_size())
        for number in bar.track(own, description="neighbors"):
            block = np.sort(blocks[number])
            found.append((number, _within(features, rows[block], count, compare, device)))
    neighbors = np.empty((len(rows), count), np.int64)
    for number, images in gather_lists(found):
        neighbors[np.sort(blocks[number])] = images
    return neighbors


@torch.no_grad()
def _within(
    features: Half, images: Rows, count: int, compare: nn.Module, device: torch.device
) -> Rows:
    """Return the nearest of `images` to each of them, itself excluded, (images, count)."""
    chunks = (images[start : start + QUERIES] for start in range(0, len(images), QUERIES))
    plain = torch.cat(
        [
            # Halves: heads train in little memory, and the search should not need more.
            compare(read_features(features, chunk, np.full(len(chunk), -1)).to(device)).half()
            for chunk in chunks
        ]
    )
    parts = [
        nearest_neighbors(plain, part, count + 1, query_chunk=64, bank_chunk=1024).indices.cpu()
        for part in torch.split(plain, QUERIES)
    ]
    nearest = torch.cat(parts).numpy()
    own = nearest == np.arange(len(images))[:, None]
    own[~own.any(1), -1] = True  # among more equal images than neighbors, it may not find itself
    others: Rows = nearest[~own].reshape(len(images), count)
    return images[others]
