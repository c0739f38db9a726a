"""The images with the highest probability of every unit: contact sheets, and a choice of units."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from imsvd.datasets import UnreadableImage
from imsvd.explanations.encodings import Encodings, EncodingsCollector, Pictures
from imsvd.explanations.meaning import Attribute, known_attributes
from imsvd.explanations.sections import (
    Findings,
    Html,
    Part,
    Section,
    element,
    join,
    named,
    paragraph,
    percent,
    write_json,
)
from imsvd.explanations.subject import Progress, Subject, unit_starts
from imsvd.files import write_atomically

UNITS_SHOWN = 12
MOST_REPEATED = 0.25
"""A unit is skipped if more than this share of its images is already shown."""
_COMMON_SHARE = 0.5
_COMMON_RATIO = 2.0
_MARGIN = 4
_LABEL = 92
_TITLE = 26
_LONGEST_COLUMN = 40
"""Units per column of a sheet."""


def _make(subject: Subject, encodings: Encodings, progress: Progress) -> dict[str, Any]:
    listing = gallery_listing(subject, encodings)
    pictures = Pictures(subject)
    done, total = 0, sum(subject.units)
    for variable in listing["variables"]:
        progress(done, total)
        content = io.BytesIO()
        draw_sheet(pictures, variable).save(content, "JPEG", quality=90)
        write_atomically(subject.folder / variable["sheet"], content.getvalue())
        done += len(variable["units"])
    write_json(subject, "galleries.json", listing)
    images = encodings.top_images.shape[1]
    return {"sheets": len(listing["variables"]), "images_per_unit": images}


def gallery_listing(subject: Subject, encodings: Encodings) -> dict[str, Any]:
    """List every unit's best images with path and score, its image count, and its mean q."""
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
        sheet = f"galleries/variable-{variable:03d}.jpg"
        variables.append({"variable": variable, "sheet": sheet, "units": units})
    return {"images": len(encodings.images), "variables": variables}


def _top(subject: Subject, encodings: Encodings, place: int) -> list[dict[str, Any]]:
    found = zip(encodings.top_images[place].tolist(), encodings.top_scores[place], strict=True)
    return [
        {"index": index, "path": subject.source.identity(index), "score": round(float(score), 6)}
        for index, score in found
        if index >= 0
    ]


def draw_sheet(pictures: Pictures, variable: Mapping[str, Any]) -> Image.Image:
    """Draw one row of thumbnails per unit, the best image first."""
    side, units = pictures.side, variable["units"]
    rows = min(len(units), _LONGEST_COLUMN)
    columns = math.ceil(len(units) / rows)
    longest = max((len(unit["top"]) for unit in units), default=0)
    width = _LABEL + longest * (side + _MARGIN) + 3 * _MARGIN
    height = _TITLE + rows * (side + _MARGIN) + _MARGIN
    sheet = Image.new("RGB", (columns * width + _MARGIN, height), "white")
    draw = ImageDraw.Draw(sheet)
    title = f"variable {variable['variable']}: images with the highest q of each unit"
    draw.text((_MARGIN, 5), title, fill="black", font=ImageFont.load_default(14))
    for number, unit in enumerate(units):
        left = number // rows * width + _MARGIN
        top = _TITLE + number % rows * (side + _MARGIN)
        _label(draw, (left, top), unit)
        for place, item in enumerate(unit["top"]):
            try:
                small = pictures.thumbnail(item["index"])
            except UnreadableImage:  # it was readable before; the sheet has a gap
                continue
            sheet.paste(small, (left + _LABEL + place * (side + _MARGIN), top))
    return sheet


def _label(draw: ImageDraw.ImageDraw, corner: tuple[int, int], unit: Mapping[str, Any]) -> None:
    scores = [item["score"] for item in unit["top"]]
    lines = [f"unit {unit['unit']}", f"{unit['images_taking_it']:,} images"]
    if scores:
        lines.append(f"q {scores[0]:.2f} to {scores[-1]:.2f}")
    for number, line in enumerate(lines):
        place = (corner[0], corner[1] + 2 + 14 * number)
        draw.text(place, line, fill="black", font=ImageFont.load_default(11))


class ShownUnit(NamedTuple):
    """A unit and its best images, as listed in `galleries.json`."""

    variable: int
    unit: int
    images_taking_it: int
    top: Sequence[Mapping[str, Any]]

    @property
    def confidence(self) -> float:
        """Mean probability of its best images."""
        return float(np.mean([item["score"] for item in self.top]))


def listed_units(listing: Mapping[str, Any]) -> list[ShownUnit]:
    """Return the units of a listing that any image takes."""
    return [
        ShownUnit(variable["variable"], unit["unit"], unit["images_taking_it"], unit["top"])
        for variable in listing["variables"]
        for unit in variable["units"]
        if unit["top"] and unit["images_taking_it"]
    ]


def choose_units(units: Iterable[ShownUnit], count: int) -> list[ShownUnit]:
    """Choose the most confident units, one per variable, skipping those that repeat images."""
    chosen: list[ShownUnit] = []
    shown: set[int] = set()
    variables: set[int] = set()
    for unit in sorted(units, key=lambda unit: (-unit.confidence, unit.variable, unit.unit)):
        images = {int(item["index"]) for item in unit.top}
        if unit.variable in variables or len(images & shown) > MOST_REPEATED * len(images):
            continue
        chosen.append(unit)
        shown |= images
        variables.add(unit.variable)
        if len(chosen) == count:
            break
    return chosen


def shown_units(findings: Findings) -> list[ShownUnit]:
    """Return the units whose galleries are in the report."""
    listing = findings.record("galleries", "galleries.json")
    return [] if listing is None else choose_units(listed_units(listing), UNITS_SHOWN)


class Common(NamedTuple):
    """An attribute value that many of some images share."""

    attribute: str
    value: str
    images: int

    @property
    def description(self) -> str:
        """The value, with the name of its attribute unless it is the label."""
        name = self.attribute.replace("_", " ")
        return self.value if name == "label" else f"{name} {self.value}"


def common_values(attributes: Mapping[str, Attribute], images: Sequence[int]) -> list[Common]:
    """Return values shared by half of `images` and twice as frequent there as overall."""
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
            found.append(Common(name, attribute.value_name(value), count))
    return sorted(found, key=lambda common: -common.images)


def unit_id(variable: int, unit: int) -> str:
    """Return the anchor of a unit's gallery on the page."""
    return f"unit-{variable}-{unit}"


def _section(findings: Findings) -> Section | None:
    units = shown_units(findings)
    if not units:
        return None
    source = findings.subject.source
    attributes = known_attributes(source, np.arange(len(source)))
    articles = []
    for unit in units:
        images = []
        for item in unit.top:
            name = findings.label(item["index"]) or item["path"]
            images.append(findings.thumbnail(item["index"], f"{name}, q {item['score']:.2f}"))
        articles.append(_gallery(unit, images, attributes))
    return [
        paragraph(
            f"The images with the highest probability of a unit, for {len(units)} of "
            f"{sum(findings.subject.units):,} units: the most confident unit of each variable, "
            f"skipping any unit with more than {percent(MOST_REPEATED, 0)} of its images already "
            "shown. All other units are in ",
            element("code", "galleries/"),
            ", one sheet per variable.",
        ),
        element("div", *articles, class_="units"),
    ]


def _gallery(unit: ShownUnit, images: Sequence[Html], attributes: Mapping[str, Attribute]) -> Html:
    common = [
        join((f"{found.images} of {len(unit.top)}: ", named(found.description)))
        for found in common_values(attributes, [item["index"] for item in unit.top])[:3]
    ]
    note = [f"taken by {unit.images_taking_it:,} images", f"mean q {unit.confidence:.2f}", *common]
    return element(
        "article",
        element("h3", f"Variable {unit.variable}, unit {unit.unit}"),
        element("ul", *(element("li", each) for each in images if each), class_="strip"),
        element("p", join(note, " · "), class_="note"),
        id=unit_id(unit.variable, unit.unit),
    )


PART = Part(
    title="What units respond to",
    files=("galleries.json",),
    reads=EncodingsCollector,
    make=_make,
    section=_section,
    method=(
        "Galleries",
        "For every unit, the images with its highest probability among all images.",
    ),
)
