"""Whether Grad-CAM maps are faithful: does a unit fade when its highlighted region is removed?

The highlighted share of an image is replaced, and the drop in the unit's probability is compared
with the drop when the same region is moved to a random place first. The control has the same size
and shape, so an uninformative map does no better than its moved copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from imsvd.encoder import Encoder
from imsvd.explanations.grad_cam import Target, grad_cam
from imsvd.explanations.sections import (
    Findings,
    Part,
    Section,
    Tile,
    paragraph,
    percent,
    table,
    write_json,
)
from imsvd.explanations.subject import (
    Collector,
    Progress,
    ReadBatch,
    Subject,
    unit_starts,
    view_probabilities,
)
from imsvd.figures import PALETTE, STYLE, save_figure

Fill = Literal["mean", "blur"]
FILLS: dict[Fill, str] = {"mean": "the mean color", "blur": "a blur"}

SHARE = 0.25
"""Share of the image that is removed."""
MOVES = 4
"""Random places per image; the drops are averaged."""
RESAMPLES = 2000
_BATCH = 32


class CropSample(Collector):
    """An evenly spaced sample of images at the encoder's size."""

    name = "crops"
    sample = 256

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        size = subject.encoder.description.size
        self.rows = {"images": [np.empty((0, 3, size, size), dtype=np.uint8)]}

    def take(self, batch: ReadBatch) -> None:
        """Take the images of the sample."""
        self.rows["images"].append(batch.crops[self.wanted_rows(batch)].numpy())

    def finish(self) -> Tensor:
        """Return the images, (n, 3, size, size) uint8."""
        return torch.from_numpy(self.joined("images"))


class Falls(NamedTuple):
    """How much the probability of each image's unit dropped, (n,) each."""

    highlighted: NDArray[np.float64]
    moved: NDArray[np.float64]
    places: NDArray[np.int64]
    """The units, counted over all variables."""
    without_map: int
    """Images left out because their map has no positive evidence."""


def measure_falls(
    encoder: Encoder,
    images: Tensor,
    fill: Fill,
    *,
    seed: int = 0,
    target: Target = "log_probability",
    progress: Progress | None = None,
) -> Falls:
    """Remove regions of images (n, 3, size, size) uint8 and measure the drop of one unit's q.

    The unit is the one that a randomly drawn variable takes in the image.
    """
    generator = torch.Generator().manual_seed(seed)
    num_variables = len(encoder.description.units)
    variables = torch.randint(num_variables, (len(images),), generator=generator)
    falls: list[list[Tensor]] = []
    for start in range(0, len(images), _BATCH):
        rows = slice(start, start + _BATCH)
        normalized = encoder.normalize(images[rows].to(encoder.mean.device))
        units = taken_units(encoder, normalized, variables[rows].to(normalized.device))
        maps = grad_cam(encoder, normalized, units, target)
        seen = maps.amax((1, 2)) > 0
        normalized, units, masks = normalized[seen], units[seen], highlighted_region(maps[seen])
        if len(units):
            before = _probability(encoder, normalized, units)
            without = partial(_without, encoder, normalized, units, make_filling(normalized, fill))
            control = [without(move_region(masks, generator)) for _ in range(MOVES)]
            falls.append([before - without(masks), before - torch.stack(control).mean(0), units])
        if progress is not None:
            progress(start + len(maps), len(images))
    joined = [torch.cat(parts).cpu().double().numpy() for parts in zip(*falls, strict=True)]
    highlighted, moved, places = joined or [np.empty(0)] * 3
    return Falls(highlighted, moved, places.astype(np.int64), len(images) - len(places))


@torch.no_grad()
def taken_units(encoder: Encoder, normalized: Tensor, variables: Tensor) -> Tensor:
    """Return the unit one variable takes in each image, (batch,), counted over all variables."""
    units = encoder.description.units
    q = view_probabilities(encoder, normalized)
    starts = torch.tensor(unit_starts(units), device=q.device)
    ends = starts + torch.tensor(units, device=q.device)
    every = torch.arange(q.shape[1], device=q.device)
    inside = (every >= starts[variables, None]) & (every < ends[variables, None])
    return q.masked_fill(~inside, -1.0).argmax(1)


def highlighted_region(maps: Tensor, share: float = SHARE) -> Tensor:
    """Return a mask of the `share` of pixels where each map (batch, height, width) is highest."""
    flat = maps.flatten(1)
    count = max(1, round(share * flat.shape[1]))
    order = flat.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(flat, dtype=torch.bool).scatter_(1, order, True).view_as(maps)


def move_region(masks: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each mask (batch, height, width) to a random place, wrapping around the edges."""
    height, width = masks.shape[-2:]
    shifts = torch.randint(1, height * width, (len(masks),), generator=generator).tolist()
    moved = [
        torch.roll(mask, divmod(shift, width), (0, 1))
        for mask, shift in zip(masks, shifts, strict=True)
    ]
    return torch.stack(moved)


def make_filling(images: Tensor, fill: Fill) -> Tensor:
    """Return what replaces a removed region: the mean color, or the image heavily blurred."""
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
    encoder: Encoder, images: Tensor, units: Tensor, filling: Tensor, masks: Tensor
) -> Tensor:
    return _probability(encoder, torch.where(masks[:, None], filling, images), units)


def summarize_falls(falls: Falls, seed: int = 0) -> dict[str, Any]:
    """Return mean drops and their difference with a 95 % bootstrap interval over images."""
    record: dict[str, Any] = {"images": len(falls.places), "images_without_map": falls.without_map}
    if not len(falls.places):
        return record | {"verdict": "no map has positive evidence"}
    difference = falls.highlighted - falls.moved
    low, high = bootstrap_interval(difference, seed)
    verdict = (
        "above random" if low > 0 else "below random" if high < 0 else "no significant difference"
    )
    return record | {
        "fall_highlighted": float(falls.highlighted.mean()),
        "fall_random": float(falls.moved.mean()),
        "difference": float(difference.mean()),
        "difference_95": [low, high],
        "share_of_images_above_random": float((difference > 0).mean()),
        "verdict": verdict,
    }


def bootstrap_interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of `values` (n,)."""
    random = np.random.default_rng(seed)
    means = [
        values[random.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _make(subject: Subject, images: Tensor, progress: Progress) -> dict[str, Any]:
    falls: dict[Fill, Falls] = {}
    for number, fill in enumerate(FILLS):

        def both(done: int, total: int, number: int = number) -> None:
            progress(number * total + done, len(FILLS) * total)

        falls[fill] = measure_falls(subject.encoder, images, fill, progress=both)
    records = {fill: summarize_falls(measured) for fill, measured in falls.items()}
    draw_faithfulness(falls, records, subject.folder / "faithfulness.png")
    write_json(subject, "faithfulness.json", {"share_removed": SHARE, "fills": records})
    return {
        f"{fill}_{name}": record.get(name)
        for fill, record in records.items()
        for name in ("images", "difference", "difference_95", "verdict")
    }


@mpl.rc_context(STYLE)
def draw_faithfulness(
    falls: Mapping[Fill, Falls], records: Mapping[Fill, Mapping[str, Any]], path: Path
) -> Path:
    """Draw for each replacement how far q drops for highlighted and for random regions."""
    figure = Figure(figsize=(4.6 * len(falls), 3.5), layout="constrained")
    axes = figure.subplots(1, len(falls), squeeze=False, sharey=True)[0]
    levels = np.linspace(0, 100, 101)
    for axis, (fill, measured) in zip(axes, falls.items(), strict=True):
        record = records[fill]
        axis.set_title(f"replaced by {FILLS[fill]}")
        if not len(measured.places):
            axis.set_axis_off()
            continue
        for values, color, label in (
            (measured.highlighted, PALETTE[1], "highlighted region"),
            (measured.moved, "#999999", "same region elsewhere"),
        ):
            axis.plot(levels, np.percentile(values, levels), color=color, linewidth=2, label=label)
        low, high = record["difference_95"]
        axis.set_xlabel(
            f"percentile of {record['images']} images\n"
            f"mean difference {record['difference']:.3f}, 95 % [{low:.3f}, {high:.3f}]"
        )
        axis.axhline(0, color="black", linewidth=0.6)
        axis.legend(frameon=False, loc="upper left")
    axes[0].set_ylabel("drop of the unit's q")
    return save_figure(figure, path)


def _section(findings: Findings) -> Section | None:
    record = findings.record("faithfulness", "faithfulness.json")
    if record is None:
        return None
    rows = [(FILLS.get(fill, fill), *_row(found)) for fill, found in record["fills"].items()]
    return [
        paragraph(
            "If a map is faithful, the unit's probability drops when the "
            f"{percent(record['share_removed'], 0)} of the image that it highlights is removed, and drops "
            "less when the same region is removed elsewhere."
        ),
        table(
            "Drop of the unit's probability",
            ("replaced by", "verdict", "images", "highlighted", "elsewhere", "difference", "95 %"),
            rows,
            texts=2,
        ),
        findings.figure(
            "faithfulness",
            "Line charts: the drop of q over images, sorted, when the highlighted region is removed "
            "and when the same region is removed elsewhere.",
        ),
    ]


def _row(found: Mapping[str, Any]) -> list[str]:
    images = f"{found['images']:,}"
    if "difference_95" not in found:
        return [found["verdict"], images, "–", "–", "–", "–"]
    low, high = found["difference_95"]
    numbers = [f"{found[name]:.3f}" for name in ("fall_highlighted", "fall_random", "difference")]
    return [found["verdict"], images, *numbers, f"{low:.3f} to {high:.3f}"]


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    if found.get("mean_difference") is None:
        return [Tile("–", "no map has positive evidence")]
    low, high = found["mean_difference_95"]
    return [
        Tile(
            f"{found['mean_difference']:+.2f}",
            "larger drop in q if highlighted rather than random regions are removed "
            f"(95 %: {low:.2f} to {high:.2f})",
        )
    ]


PART = Part(
    title="Faithfulness of the maps",
    files=("faithfulness.png", "faithfulness.json"),
    reads=CropSample,
    make=_make,
    section=_section,
    tiles=_tiles,
    method=(
        "Faithfulness",
        "In each image, the quarter that the map of one unit highlights is replaced by the mean "
        "color or by a blur. The control is the same region moved to four random places. The "
        "interval is a 95 % bootstrap over images.",
    ),
)
