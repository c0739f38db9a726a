"""Which units are worth showing, and what their images have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from imsvd.explanations.meaning import Attribute

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
