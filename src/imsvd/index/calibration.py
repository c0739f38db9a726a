"""How alike near-duplicates are, measured without labels when an index is made.

Some images are edited as copies on the web are: cut at the edges, mirrored, compressed, brightened or
darkened, made smaller. An edited copy is alike its original; images drawn at random are not. A threshold
balances two mistakes: the share of edited copies that it misses, and the expected number of other images
that it takes for copies of an image, which grows with the size of the index. Chance likeness is
extrapolated from the middle of its distribution (median and interquartile range), which duplicates that
are in the data already do not move.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from imsvd.datasets import UnreadableImage
from imsvd.evaluation.features import center_crop
from imsvd.index.encoding import Coder, Part

IMAGES = 160
"""Most images that are edited."""
CANDIDATES = 0.98
"""Share of edited copies whose codes must be close enough to be candidates."""


def measure_likeness(coder: Coder, parts: Sequence[Part]) -> dict[str, Any]:
    """Encode some images and edited copies of them; return how alike copies and strangers are."""
    plain, edited = _sample(coder, parts)
    if len(plain) < 2:
        return {}
    originals, copies = coder.encode(torch.stack(plain)), coder.encode(torch.stack(edited))
    kept = originals.features / np.linalg.norm(originals.features, axis=1, keepdims=True).clip(
        1e-12
    )
    made = copies.features / np.linalg.norm(copies.features, axis=1, keepdims=True).clip(1e-12)
    first, second = np.triu_indices(len(plain), 1)
    apart = (originals.codes[first] != originals.codes[second]).sum(1)
    return {
        "copy_distances": sorted((originals.codes != copies.codes).sum(1).tolist()),
        "copy_cosines": sorted(round(float(value), 5) for value in (kept * made).sum(1)),
        "chance_distances": _middle(apart),
        "chance_cosines": _middle((kept[first] * kept[second]).sum(1)),
    }


def _middle(values: NDArray[Any]) -> list[float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return [round(middle, 5), round(max(high - low, 1e-6) / 1.349, 6)]


def _sample(coder: Coder, parts: Sequence[Part]) -> tuple[list[Tensor], list[Tensor]]:
    total = sum(len(part.source) for part in parts)
    plain: list[Tensor] = []
    edited: list[Tensor] = []
    for part in parts:
        wanted = max(1, min(len(part.source), IMAGES * len(part.source) // total))
        for number in np.linspace(0, len(part.source) - 1, wanted).astype(int).tolist():
            try:
                image = part.source.read(number)
            except UnreadableImage:
                continue
            plain.append(center_crop(image, coder.size))
            edited.append(center_crop(edit(image, len(edited)), coder.size))
    return plain, edited


def edit(image: Tensor, number: int) -> Tensor:
    """Return an edited copy of an image (3, height, width) uint8; `number` says how."""
    random = np.random.default_rng(number)
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    width, height = picture.size
    match number % 5:
        case 0:
            share = random.uniform(0.85, 0.95)
            left, top = random.uniform(0, 1 - share, 2)
            box = (left * width, top * height, (left + share) * width, (top + share) * height)
            picture = picture.crop(tuple(round(side) for side in box))
        case 1:
            picture = ImageOps.mirror(picture)
        case 2:
            content = io.BytesIO()
            picture.save(content, "JPEG", quality=int(random.integers(25, 60)))
            picture = Image.open(content).convert("RGB")
        case 3:
            picture = ImageEnhance.Brightness(picture).enhance(float(random.choice([0.75, 1.3])))
        case _:
            share = random.uniform(0.4, 0.7)
            small = max(8, round(share * width)), max(8, round(share * height))
            picture = picture.resize(small, Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def cosine_threshold(near: dict[str, Any], images: int) -> float:
    """Return the cosine above which two images of an index count as copies."""
    choices = np.array(near["copy_cosines"])
    center, scale = near["chance_cosines"]
    return float(_balance(choices, choices, center, scale, images))


def distance_threshold(near: dict[str, Any], images: int) -> int:
    """Return the number of different variables up to which two images count as copies."""
    center, scale = near["chance_distances"]
    copies = np.array(near["copy_distances"])
    return int(-_balance(-copies, -np.arange(copies.max() + 1), -center, scale, images))


def candidate_distance(near: dict[str, Any]) -> int:
    """Return the number of different variables within which most edited copies are."""
    return math.ceil(float(np.quantile(near["copy_distances"], CANDIDATES)))


def _balance(
    copies: NDArray[Any], choices: NDArray[Any], center: float, scale: float, images: int
) -> float:
    """Return the likeness at which missed copies and expected strangers together are fewest."""
    missed = np.array([(copies < choice).mean() for choice in choices])
    chance = np.array(
        [math.erfc((choice - center) / scale / math.sqrt(2)) / 2 for choice in choices]
    )
    mistakes = missed + images * chance
    best = np.flatnonzero(mistakes == mistakes.min())
    return float(choices[best].min())
