"""Whether maps are true: does a unit fade when the region its map highlights is removed?

The highlighted share of an image is replaced, and the fall of the unit's probability is compared
with the fall when the very same region, moved to a random place, is replaced instead: as large, of
the same form, and elsewhere. A map that says nothing does no better than its moved copy.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from imsvd.encoder import Encoder
from imsvd.explanations.grad_cam import Target, grad_cam
from imsvd.explanations.subject import Progress, unit_starts, view_probabilities

Fill = Literal["mean", "blur"]
FILLS: tuple[Fill, ...] = ("mean", "blur")

SHARE = 0.25
"""Part of the image that is removed."""
MOVES = 4
"""Random places per image, averaged."""
RESAMPLES = 2000
_BATCH = 32


class Falls(NamedTuple):
    """How much the probability of each image's unit fell, (n,) each."""

    highlighted: NDArray[np.float64]
    moved: NDArray[np.float64]
    places: NDArray[np.int64]
    """The units, counted over all variables."""
    without_map: int
    """Images left out because nothing in them speaks for their unit."""


def measure_falls(
    encoder: Encoder,
    images: Tensor,
    fill: Fill,
    *,
    seed: int = 0,
    target: Target = "log_probability",
    progress: Progress | None = None,
) -> Falls:
    """Remove regions of images (n, 3, size, size) uint8 and see a unit of each fade.

    Each image is asked about the unit that a randomly drawn variable takes.
    """
    generator = torch.Generator().manual_seed(seed)
    num_variables = len(encoder.description.units)
    variables = torch.randint(num_variables, (len(images),), generator=generator)
    highlighted, moved, places = [], [], []
    for start in range(0, len(images), _BATCH):
        rows = slice(start, start + _BATCH)
        normalized = encoder.normalize(images[rows].to(encoder.mean.device))
        asked = taken_units(encoder, normalized, variables[rows].to(normalized.device))
        maps = grad_cam(encoder, normalized, asked, target)
        seen = maps.amax((1, 2)) > 0
        normalized, asked, masks = normalized[seen], asked[seen], highlighted_region(maps[seen])
        if len(asked):
            before = _probability(encoder, normalized, asked)
            filling = make_filling(normalized, fill)
            highlighted.append(before - _without(encoder, normalized, asked, masks, filling))
            moved.append(
                before - _without_moved(encoder, normalized, asked, masks, filling, generator)
            )
            places.append(asked)
        if progress is not None:
            progress(start + len(maps), len(images))
    return _collect(highlighted, moved, places, len(images))


def _collect(
    highlighted: list[Tensor], moved: list[Tensor], places: list[Tensor], total: int
) -> Falls:
    if not places:
        nothing = np.empty(0)
        return Falls(nothing, nothing, np.empty(0, dtype=np.int64), total)
    joined = [torch.cat(part).cpu() for part in (highlighted, moved, places)]
    return Falls(
        joined[0].double().numpy(),
        joined[1].double().numpy(),
        joined[2].numpy(),
        total - len(joined[2]),
    )


@torch.no_grad()
def taken_units(encoder: Encoder, normalized: Tensor, variables: Tensor) -> Tensor:
    """The unit that a variable takes in each image, (batch,), counted over all variables."""
    units = encoder.description.units
    q = view_probabilities(encoder, normalized)
    starts = torch.tensor(unit_starts(units), device=q.device)
    ends = starts + torch.tensor(units, device=q.device)
    every = torch.arange(q.shape[1], device=q.device)
    inside = (every >= starts[variables, None]) & (every < ends[variables, None])
    return q.masked_fill(~inside, -1.0).argmax(1)


def highlighted_region(maps: Tensor, share: float = SHARE) -> Tensor:
    """The `share` of pixels where each map (batch, height, width) is highest, as a mask."""
    flat = maps.flatten(1)
    count = max(1, round(share * flat.shape[1]))
    order = flat.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(flat, dtype=torch.bool).scatter_(1, order, True).view_as(maps)


def move_region(masks: Tensor, generator: torch.Generator) -> Tensor:
    """Each mask (batch, height, width) shifted to a random place, wrapping round the edges."""
    height, width = masks.shape[-2:]
    shifts = torch.randint(1, height * width, (len(masks),), generator=generator).tolist()
    moved = [
        torch.roll(mask, divmod(shift, width), (0, 1))
        for mask, shift in zip(masks, shifts, strict=True)
    ]
    return torch.stack(moved)


def make_filling(images: Tensor, fill: Fill) -> Tensor:
    """What a removed region shows instead: the image's mean color, or the image heavily blurred."""
    if fill == "mean":
        return images.mean((2, 3), keepdim=True).expand_as(images)
    side = min(images.shape[-2:])
    kernel = side // 2 * 2 - 1
    blurred: Tensor = transforms.gaussian_blur(images, [kernel, kernel], [side / 6, side / 6])
    return blurred


@torch.no_grad()
def _probability(encoder: Encoder, images: Tensor, places: Tensor) -> Tensor:
    return view_probabilities(encoder, images).gather(1, places[:, None])[:, 0]


def _without(
    encoder: Encoder, images: Tensor, places: Tensor, masks: Tensor, filling: Tensor
) -> Tensor:
    return _probability(encoder, torch.where(masks[:, None], filling, images), places)


def _without_moved(
    encoder: Encoder,
    images: Tensor,
    places: Tensor,
    masks: Tensor,
    filling: Tensor,
    generator: torch.Generator,
) -> Tensor:
    falls = [
        _without(encoder, images, places, move_region(masks, generator), filling)
        for _ in range(MOVES)
    ]
    return torch.stack(falls).mean(0)


def summarize_falls(falls: Falls, seed: int = 0) -> dict[str, Any]:
    """Mean falls and their difference with a 95 % bootstrap interval over the images."""
    record: dict[str, Any] = {"images": len(falls.places), "images_without_map": falls.without_map}
    if not len(falls.places):
        return record | {"verdict": "no map has positive evidence"}
    difference = falls.highlighted - falls.moved
    low, high = bootstrap_interval(difference, seed)
    verdict = "above random" if low > 0 else "below random" if high < 0 else "not told apart"
    return record | {
        "fall_highlighted": float(falls.highlighted.mean()),
        "fall_random": float(falls.moved.mean()),
        "difference": float(difference.mean()),
        "difference_95": [low, high],
        "share_of_images_above_random": float((difference > 0).mean()),
        "verdict": verdict,
    }


def bootstrap_interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of `values` (n,), from `RESAMPLES` resamples."""
    random = np.random.default_rng(seed)
    means = [
        values[random.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
