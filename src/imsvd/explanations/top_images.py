"""The globally best images of every unit, from a stream, in memory that does not grow with it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_LOW = 2**32 - 1


class Best(NamedTuple):
    """The best images of every unit, best first; the earlier image wins a tie.

    Attributes:
        images: (width, count) int64 positions; -1 where there were too few images.
        scores: (width, count) float32; 0 there.
    """

    images: Tensor
    scores: Tensor


class TopImages:
    """Keeps the `count` images with the highest probability of each of `width` units.

    A score and a position make one 64-bit key: the bits of a non-negative float32 rank as the float
    does, and below them the position counts backwards. Keys are unique, so the best ones are the
    same in whatever order and batches the images come.
    """

    def __init__(self, width: int, count: int) -> None:
        self._keys = torch.full((width, count), -1, dtype=torch.int64)

    @property
    def keys(self) -> Tensor:
        """(width, count) int64: all that is remembered, for `restore`."""
        return self._keys

    def restore(self, keys: Tensor) -> None:
        """Go on from the `keys` of another."""
        self._keys = keys.clone()

    def add(self, q: Tensor, images: Tensor) -> None:
        """Consider the probabilities (batch, width) of the images at positions (batch,)."""
        bits = q.detach().cpu().float().T.contiguous().view(torch.int32).long()
        keys = (bits << 32) | (_LOW - images.cpu().long())
        count = self._keys.shape[1]
        best = keys.topk(min(count, keys.shape[1]), dim=1).values
        self._keys = torch.cat((self._keys, best), 1).topk(count, dim=1).values

    def best(self) -> Best:
        """Return what the stream has shown so far."""
        empty = self._keys < 0
        scores = (self._keys >> 32).int().view(torch.float32)
        images = _LOW - (self._keys & _LOW)
        return Best(images.masked_fill(empty, -1), scores.masked_fill(empty, 0.0))
