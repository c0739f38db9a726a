"""How alike near-duplicates are, measured without labels.

Two things are compared. *Copies*: when an index is made, some images are edited as copies on the web are
(cut at the edges, mirrored, compressed, brightened or darkened, made smaller). *Strangers*: when
duplicates are searched, images of the index are compared with their neighbors. A threshold leaves at most
`STRANGERS` strangers to an image on average. If almost all edited copies are nearer than that, it is in the
middle between them and strangers, because real copies may be edited more than ours.

Strangers that near are too rare to be counted, and real copies are among them. So they are
extrapolated from neighbors of rank 3 to 10: features have an intrinsic dimension m, and the number of
images within a distance t grows as t^m. It is estimated as by Levina and Bickel (2005), for all images
together. Of images that are nearer to each other than half of the edited copies are to their originals,
one is compared.
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
from rich.console import Console
from torch import Tensor

from imsvd.datasets import UnreadableImage
from imsvd.evaluation.features import center_crop
from imsvd.index.close_codes import PackedCodes
from imsvd.index.encoding import Coder, Part

IMAGES = 160
"""Most images that are edited."""
ALMOST_ALL = 0.98
"""Share of edited copies by which their reach is measured."""
STRANGERS = 0.005
"""Most strangers that are taken for copies of an image, on average: one in 200 images has one."""
COMPARED = 2000
"""Most images of an index whose neighbors are measured."""
NEAREST, FARTHEST = 3, 10
"""Ranks of the neighbors that strangers are extrapolated from: two real copies do no harm."""


def measure_copies(coder: Coder, parts: Sequence[Part], console: Console) -> dict[str, Any]:
    """Encode some images and edited copies of them; return how alike they are."""
    plain, edited, unreadable = _sample(coder, parts)
    if unreadable:
        console.print(
            f"{unreadable:,} unreadable images are not among those whose copies are measured.",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    if len(plain) < 2:
        return {}
    originals, copies = coder.encode(torch.stack(plain)), coder.encode(torch.stack(edited))
    cosines = (of_length_one(originals.features) * of_length_one(copies.features)).sum(1)
    return {
        "copy_distances": sorted((originals.codes != copies.codes).sum(1).tolist()),
        "copy_cosines": sorted(round(float(value), 5) for value in cosines),
    }


def of_length_one(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale features (n, width) to length 1."""
    scaled: NDArray[np.float32] = features / np.linalg.norm(features, axis=1, keepdims=True).clip(
        1e-12
    )
    return scaled


def _sample(coder: Coder, parts: Sequence[Part]) -> tuple[list[Tensor], list[Tensor], int]:
    """Return some images, an edited copy of each, and how many more could not be read."""
    total = sum(len(part.source) for part in parts)
    plain: list[Tensor] = []
    edited: list[Tensor] = []
    unreadable = 0
    for part in parts:
        wanted = max(1, min(len(part.source), IMAGES * len(part.source) // total))
        for number in np.linspace(0, len(part.source) - 1, wanted).astype(int).tolist():
            try:
                image = part.source.read(number)
            except UnreadableImage:
                unreadable += 1
                continue
            plain.append(center_crop(image, coder.size))
            # Numbered with the unreadable ones, so that these do not change how others are edited.
            copy = edit(image, unreadable + len(edited))
            edited.append(center_crop(copy, coder.size))
    return plain, edited, unreadable


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


def cosine_threshold(near: dict[str, Any], features: NDArray[np.float32], images: int) -> float:
    """Return the cosine from which two images of an index count as copies.

    Args:
        near: what `measure_copies` found.
        features: of some images of the index, (n, width), of length 1.
        images: number of images in the index.
    """
    copies = np.array(near["copy_cosines"])
    typical, reach = (_distance(np.quantile(copies, q)) for q in (0.5, 1 - ALMOST_ALL))
    compared = len(features)
    features = _without_copies(features, _cosine(typical))
    last = min(FARTHEST, len(features) - 1)
    first = min(NEAREST, last - 1)
    if first < 1:
        return _cosine(typical)
    distances = _neighbor_distances(features, last)
    dimension = intrinsic_dimension(distances, first)
    # Strangers within t of an image: (last - 1) (t / distance of the last)^m among those compared.
    # The densest places count most; their distances are divided first, so that no power overflows.
    farthest = distances[:, -1]
    nearest = float(farthest.min())
    crowd = (last - 1) * float(((nearest / farthest) ** dimension).mean())
    crowd *= images / compared
    strangers = nearest * (STRANGERS / crowd) ** (1 / dimension)
    return _cosine(min(strangers, (strangers + reach) / 2))


def _distance(cosine: float) -> float:
    """Return the distance of two vectors of length 1."""
    return math.sqrt(max(0.0, 2 - 2 * cosine))


def _cosine(distance: float) -> float:
    return 1 - distance**2 / 2


def _without_copies(features: NDArray[np.float32], cosine: float) -> NDArray[np.float32]:
    """Leave out images that are above a cosine to an earlier one."""
    kept = np.ones(len(features), dtype=bool)
    for number in range(len(features) - 1):
        if kept[number]:
            kept[number + 1 :] &= features[number + 1 :] @ features[number] < cosine
    return features[kept]


def _neighbor_distances(features: NDArray[np.float32], count: int) -> NDArray[np.float64]:
    """Return the distances of images of length 1 to their nearest others, ascending, (n, count)."""
    cosines = features @ features.T
    np.fill_diagonal(cosines, -1)
    nearest = -np.sort(-np.partition(cosines, -count, axis=1)[:, -count:], axis=1)
    distances: NDArray[np.float64] = np.sqrt((2 - 2 * nearest.astype(np.float64)).clip(1e-9))
    return distances


def intrinsic_dimension(distances: NDArray[np.float64], first: int) -> float:
    """Return the dimension in which neighbors of rank `first` on have these distances, (n, ranks).

    In m dimensions, the logarithm of the last distance over that of rank j has the mean
    (1/j + … + 1/(last - 1)) / m.
    """
    last = distances.shape[1]
    expected = np.mean([sum(1 / k for k in range(j, last)) for j in range(first, last)])
    logs = np.log(distances[:, -1:] / distances[:, first - 1 : -1]).mean()
    return float(expected / max(logs, 1e-6))


def distance_threshold(near: dict[str, Any], codes: PackedCodes, images: int) -> int:
    """Return the number of different variables up to which two images count as copies by codes alone.

    -1 if even images with equal codes are strangers too often. Codes of all images are compared with
    those of some. The two nearest of each may be real copies; how many of them are strangers is
    extrapolated.
    """
    reach = math.ceil(float(np.quantile(near["copy_distances"], ALMOST_ALL)))
    asked = np.random.default_rng(0).permutation(images)[: COMPARED // 8]
    within = np.zeros((len(asked), codes.variables + 1))
    others = np.arange(images)
    for row, number in enumerate(asked.tolist()):
        apart = codes.distances(np.full(images, number), others)
        # Without the image itself.
        within[row] = np.bincount(apart, minlength=codes.variables + 1).cumsum() - 1
    beyond = np.maximum(0, within - (NEAREST - 1)).sum(0)
    strangers = np.maximum(
        beyond, np.minimum(within.sum(0), extrapolated(within.sum(0), len(asked)))
    )
    return int((strangers[: reach + 1] <= STRANGERS * len(asked)).sum()) - 1


def extrapolated(within: NDArray[np.float64], asked: int) -> NDArray[np.float64]:
    """Return how many strangers `asked` codes have within 0, 1, … variables.

    `within` counts all other codes. Where they are as many as `FARTHEST` to a code, real copies hardly
    count. From there down, the logarithm goes on with its slope, which grows as it does beyond: it is
    concave, as that of a binomial distribution.
    """
    last = len(within) - 1
    first = min(int(np.argmax(within >= min(FARTHEST * asked, within[-1]))), last - 1)
    slopes = np.log(within[first + 1 :] / within[first:-1].clip(1e-12))
    growth = max(0.0, float(slopes[0] - slopes[1])) if len(slopes) > 1 else 0.0
    below = np.maximum(first - np.arange(last + 1), 0)
    falling = within[first] * np.exp(-(slopes[0] * below + growth * below * (below + 1) / 2))
    found: NDArray[np.float64] = np.where(below > 0, falling, within)
    return found


def candidate_distance(near: dict[str, Any]) -> int:
    """Return the number of different variables within which all edited copies are."""
    return int(max(near["copy_distances"]))
