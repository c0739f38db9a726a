"""Contact sheets: for every variable the images that excite each of its units most."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from imsvd.datasets import UnreadableImage
from imsvd.explanations.encodings import Encodings
from imsvd.explanations.meaning import Attribute
from imsvd.explanations.subject import Progress, Subject, unit_starts
from imsvd.files import write_atomically

_MARGIN = 4
_LABEL = 92
_TITLE = 26
_LONGEST_COLUMN = 40
"""Units below one another; the rest go into further columns of the sheet."""


def sheet_name(variable: int) -> str:
    """File of a variable's contact sheet, below the folder of explanations."""
    return f"galleries/variable-{variable:03d}.jpg"


def gallery_listing(subject: Subject, encodings: Encodings) -> dict[str, Any]:
    """Every unit's best images with path and score, how many images take it, and its mean q."""
    variables = []
    for variable, start in enumerate(unit_starts(subject.units)):
        size = subject.units[variable]
        taken = np.bincount(encodings.codes[:, variable], minlength=size)
        units = [
            {
                "unit": unit,
                "images_taking_it": int(taken[unit]),
                "mean_probability": round(float(encodings.marginals[start + unit]), 6),
                "top": _top(subject, encodings, start + unit),
            }
            for unit in range(size)
        ]
        variables.append({"variable": variable, "sheet": sheet_name(variable), "units": units})
    return {"images": len(encodings.images), "variables": variables}


def _top(subject: Subject, encodings: Encodings, place: int) -> list[dict[str, Any]]:
    found = zip(encodings.top_images[place], encodings.top_scores[place], strict=True)
    return [
        {
            "index": int(index),
            "path": subject.source.identity(int(index)),
            "score": round(float(score), 6),
        }
        for index, score in found
        if index >= 0
    ]


def draw_sheets(subject: Subject, listing: dict[str, Any], progress: Progress | None) -> list[Path]:
    """Draw the contact sheet of every variable and return their files."""
    written = []
    done, total = 0, sum(len(variable["units"]) for variable in listing["variables"])
    for variable in listing["variables"]:

        def tell(drawn: int, _: int, done: int = done) -> None:
            if progress is not None:
                progress(done + drawn, total)

        path = subject.folder / variable["sheet"]
        content = io.BytesIO()
        draw_sheet(subject, variable, tell).save(content, "JPEG", quality=90)
        write_atomically(path, content.getvalue())
        written.append(path)
        done += len(variable["units"])
    return written


def draw_sheet(
    subject: Subject, variable: dict[str, Any], progress: Progress | None = None
) -> Image.Image:
    """One row of thumbnails per unit, the best image first."""
    side = max(48, min(96, subject.encoder.description.size))
    rows = min(len(variable["units"]), _LONGEST_COLUMN)
    columns = math.ceil(len(variable["units"]) / rows)
    longest = max((len(unit["top"]) for unit in variable["units"]), default=0)
    width = _LABEL + longest * (side + _MARGIN) + 3 * _MARGIN
    sheet = Image.new(
        "RGB", (columns * width + _MARGIN, _TITLE + rows * (side + _MARGIN) + _MARGIN), "white"
    )
    draw = ImageDraw.Draw(sheet)
    title = f"variable {variable['variable']}: the images with the highest q of each unit"
    draw.text((_MARGIN, 5), title, fill="black", font=ImageFont.load_default(14))
    for number, unit in enumerate(variable["units"]):
        left = number // rows * width + _MARGIN
        top = _TITLE + number % rows * (side + _MARGIN)
        _label(draw, (left, top), unit)
        _thumbnails(sheet, (left + _LABEL, top), subject, [item["index"] for item in unit["top"]])
        if progress is not None:
            progress(number + 1, len(variable["units"]))
    return sheet


def _label(draw: ImageDraw.ImageDraw, corner: tuple[int, int], unit: dict[str, Any]) -> None:
    scores = [item["score"] for item in unit["top"]]
    lines = [f"unit {unit['unit']}", f"{unit['images_taking_it']:,} images"]
    if scores:
        lines.append(f"q {scores[0]:.2f} to {scores[-1]:.2f}")
    for number, line in enumerate(lines):
        place = (corner[0], corner[1] + 2 + 14 * number)
        draw.text(place, line, fill="black", font=ImageFont.load_default(11))


def _thumbnails(
    sheet: Image.Image, corner: tuple[int, int], subject: Subject, indices: Sequence[int]
) -> None:
    side = max(48, min(96, subject.encoder.description.size))
    for number, index in enumerate(indices):
        try:
            picture = subject.picture(index).permute(1, 2, 0).numpy()
        except UnreadableImage:  # it was readable a moment ago; the sheet has a gap
            continue
        small = Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS)
        sheet.paste(small, (corner[0] + number * (side + _MARGIN), corner[1]))


MOST_REPEATED = 0.25
"""A unit is passed over when more than this share of its images has been shown already."""

_COMMON_SHARE = 0.5
_COMMON_RATIO = 2.0


class TellingUnit(NamedTuple):
    """A unit and its best images, as `galleries.json` lists them."""

    variable: int
    unit: int
    images_taking_it: int
    top: Sequence[Mapping[str, Any]]

    @property
    def sureness(self) -> float:
        """Mean probability of its best images."""
        return float(np.mean([item["score"] for item in self.top]))


def telling_units(listing: Mapping[str, Any], count: int) -> list[TellingUnit]:
    """Units with the surest best images, one a variable, whose images were not shown already."""
    every = [
        TellingUnit(variable["variable"], unit["unit"], unit["images_taking_it"], unit["top"])
        for variable in listing["variables"]
        for unit in variable["units"]
        if unit["top"] and unit["images_taking_it"]
    ]
    return choose_units(every, count)


def choose_units(units: Iterable[TellingUnit], count: int) -> list[TellingUnit]:
    """The surest of some units, one a variable, passing over what repeats images of surer ones."""
    chosen: list[TellingUnit] = []
    shown: set[int] = set()
    variables: set[int] = set()
    for unit in sorted(units, key=lambda unit: (-unit.sureness, unit.variable, unit.unit)):
        images = {int(item["index"]) for item in unit.top}
        if unit.variable in variables or len(images & shown) > MOST_REPEATED * len(images):
            continue
        chosen.append(unit)
        shown |= images
        variables.add(unit.variable)
        if len(chosen) == count:
            break
    return chosen


class Common(NamedTuple):
    """A value that many of some images share."""

    attribute: str
    value: str
    images: int


def common_values(attributes: Mapping[str, Attribute], images: Sequence[int]) -> list[Common]:
    """Values that half of the `images` have and twice their share of all images, commonest first."""
    found = []
    for name, attribute in attributes.items():
        known = attribute.values[attribute.values >= 0]
        here = attribute.values[list(images)]
        values, counts = np.unique(here[here >= 0], return_counts=True)
        if not len(values):
            continue
        value, count = int(values[counts.argmax()]), int(counts.max())
        share = count / len(images)
        if share >= _COMMON_SHARE and share >= _COMMON_RATIO * float((known == value).mean()):
            found.append(Common(name, value_name(attribute, value), count))
    return sorted(found, key=lambda common: -common.images)


def value_name(attribute: Attribute, value: int) -> str:
    """The name of an attribute's value, or its number where it has none."""
    return attribute.names[value] if value < len(attribute.names) else str(value)
