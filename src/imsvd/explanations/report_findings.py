"""What a report is made of: the summary, the files of finished parts, and the images themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from imsvd.datasets import UnreadableImage
from imsvd.explanations.galleries import TellingUnit, telling_units
from imsvd.explanations.meaning import Attribute, known_attributes
from imsvd.explanations.report_html import Html, Picture, element, figure, thumbnail
from imsvd.explanations.subject import Subject

UNITS_SHOWN = 12


class Findings:
    """Reads what sections ask for; what is missing or damaged is None."""

    def __init__(self, subject: Subject, summary: Mapping[str, Any]) -> None:
        self.subject = subject
        self.summary = summary
        self._pictures: dict[int, Picture | None] = {}

    def record(self, part: str, file: str) -> dict[str, Any] | None:
        """The JSON file of a part, if the part belongs to this summary and the file is whole."""
        if part not in self.summary["parts"]:
            return None
        try:
            found = json.loads((self.subject.folder / file).read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def figure(self, part: str, alt: str, *caption: str, file: str = "") -> Html | None:
        """A figure of a part, if the part belongs to this summary."""
        if part not in self.summary["parts"]:
            return None
        return figure(self.subject.folder / (file or f"{part}.png"), alt, *caption)

    @cached_property
    def attributes(self) -> dict[str, Attribute]:
        """Everything known of all images."""
        return known_attributes(self.subject.source, np.arange(len(self.subject.source)))

    @cached_property
    def units(self) -> list[TellingUnit]:
        """The units whose galleries are shown."""
        listing = self.record("galleries", "galleries.json")
        return [] if listing is None else telling_units(listing, UNITS_SHOWN)

    def picture(self, index: int) -> Picture | None:
        """An image as the encoder sees it, small; nothing if it cannot be read any more."""
        if index not in self._pictures:
            side = max(48, min(96, self.subject.encoder.description.size))
            try:
                pixels = self.subject.picture(index).permute(1, 2, 0).numpy()
                self._pictures[index] = thumbnail(pixels, side)
            except UnreadableImage:
                self._pictures[index] = None
        return self._pictures[index]

    def label(self, index: int) -> str | None:
        """The name of an image's label, where it has one."""
        source = self.subject.source
        value = -1 if source.labels is None else int(source.labels[index])
        if value < 0:
            return None
        return source.classes[value] if value < len(source.classes) else str(value)


def percent(share: float, digits: int = 1) -> str:
    """A share in percent."""
    return f"{100 * share:.{digits}f} %"


def named(text: str) -> Html:
    """A name that comes from the user's files, whose direction must not turn the line around."""
    return element("span", text, class_="name")
