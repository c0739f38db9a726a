"""A plan for labeling: images whose codes represent all others (facility location).

Two images are as similar as s(i, j) = exp(-8 h / M), where h counts the variables in which their codes
differ. The plan S of a given size makes

    f(S) = Σ_j max_{i in S} s(i, j)

large: every image j should have a similar one in the plan. Choosing one image after the other, always
the one that adds most, reaches at least 1 - 1/e of the maximum (Nemhauser et al., 1978), and every
beginning of the plan is a plan itself. What an image adds can only shrink, so that most images are
never evaluated again (Minoux, 1978).

Above 8,192 images, a random sample of that size stands for all of them, and candidates are drawn too.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imsvd.errors import InputError
from imsvd.population.counting import Codes, Progress, check_codes, first_units

SHARPNESS = 8.0
"""Similarity falls to 1/e when one in so many variables differs; chosen on held-out training images."""
REPRESENTED = 8192
"""Images that the plan is made to represent; a sample if there are more."""
CANDIDATES = 16384
"""Images that the plan is chosen from, or four times its size if that is more."""
_CHUNK = 1024


@dataclass(frozen=True)
class Selection:
    """A plan for labeling.

    Attributes:
        images: positions of the images, most useful first.
        represented: mean similarity of all images to the most similar one in the plan so far, after
            each choice; 1 means that every code occurs in the plan.
    """

    images: tuple[int, ...]
    represented: tuple[float, ...]


def select_images(
    codes: Codes,
    units: tuple[int, ...],
    count: int,
    *,
    given: Sequence[int] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Selection:
    """Choose `count` images of codes (n, M) to label, besides those `given`, which are labeled already."""
    check_codes(codes, units)
    labeled = set(given)
    if not 1 <= count <= len(codes) - len(labeled):
        raise InputError(
            f"count = {count}: choose between 1 and {len(codes) - len(labeled):,}, "
            "the number of images that are not labeled yet."
        )
    random = np.random.default_rng(seed)
    open_images = np.array([i for i in range(len(codes)) if i not in labeled])
    candidates = _sample(open_images, max(CANDIDATES, 4 * count), random)
    similar = _Similar(codes[_sample(np.arange(len(codes)), REPRESENTED, random)], units)
    best = np.zeros(similar.images, dtype=np.float32)
    for image in labeled:
        best = np.maximum(best, similar.to(codes[image]))
    gains = similar.gains(codes[candidates], best)
    return _greedy(codes, candidates, gains, best, similar, count, progress)


def _sample(images: NDArray[np.int64], most: int, random: np.random.Generator) -> NDArray[np.int64]:
    if len(images) <= most:
        return images
    return np.sort(random.choice(images, most, replace=False))


def _greedy(
    codes: Codes,
    candidates: NDArray[np.int64],
    gains: NDArray[np.float64],
    best: NDArray[np.float32],
    similar: _Similar,
    count: int,
    progress: Progress | None,
) -> Selection:
    # (negative gain, image, number of choices when the gain was computed); ties: first image first.
    heap = [(-float(gain), int(image), 0) for gain, image in zip(gains, candidates, strict=True)]
    heapq.heapify(heap)
    chosen: list[int] = []
    represented: list[float] = []
    while len(chosen) < count:
        _, image, computed = heap[0]
        found = similar.to(codes[image])
        if computed == len(chosen):
            heapq.heappop(heap)
            chosen.append(image)
            best = np.maximum(best, found)
            represented.append(float(best.mean()))
            if progress is not None:
                progress(len(chosen), count)
        else:
            gain = float(np.maximum(found - best, 0).sum(dtype=np.float64))
            heapq.heapreplace(heap, (-gain, image, len(chosen)))
    return Selection(tuple(chosen), tuple(represented))


class _Similar:
    """Similarity of codes to those of the images to be represented."""

    def __init__(self, codes: Codes, units: tuple[int, ...]) -> None:
        self.images = len(codes)
        self._starts, self._total = first_units(units)[:-1], sum(units)
        self._columns = np.ascontiguousarray(codes.T)
        different = np.arange(len(units), -1, -1)
        self._by_shared = np.exp(-SHARPNESS * different / len(units)).astype(np.float32)

    def to(self, code: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Return the similarity (images,) to one code (M,)."""
        shared = (self._columns == code[:, None]).sum(axis=0, dtype=np.uint16)
        similarity: NDArray[np.float32] = self._by_shared[shared]
        return similarity

    def gains(self, codes: Codes, best: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return what each of the codes would add where images are represented as well as `best`."""
        represented, gains = self._one_hot(self._columns.T).T, np.empty(len(codes))
        for start in range(0, len(codes), _CHUNK):
            part = slice(start, start + _CHUNK)
            similarity = self._one_hot(codes[part]) @ represented
            similarity -= len(self._columns)
            similarity *= SHARPNESS / len(self._columns)
            np.exp(similarity, out=similarity)
            similarity -= best
            gains[part] = np.maximum(similarity, 0, out=similarity).sum(axis=1)
        return gains

    def _one_hot(self, codes: Codes) -> NDArray[np.float32]:
        rows = np.zeros((len(codes), self._total), dtype=np.float32)
        np.put_along_axis(rows, codes.astype(np.int64) + self._starts, 1, axis=1)
        return rows
