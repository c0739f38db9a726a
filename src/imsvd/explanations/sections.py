"""What report sections are built from: the contract of a part, its findings, and HTML elements.

Every text is escaped unless it is markup already, and every image is embedded.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from imsvd.datasets import UnreadableImage
from imsvd.explanations.encodings import Pictures
from imsvd.explanations.subject import Collector, Progress, Subject
from imsvd.files import write_atomically

LARGEST_FIGURE = 300_000
"""Bytes above which a figure is recompressed."""
_DENSITY = 150 / 96
_ONE_PANEL = 640
"""Widest figure that is still legible on a phone."""
_VOID = frozenset({"img", "meta", "br"})
_SMALLER = ((1600, 85), (1400, 75), (1200, 65), (1000, 50))
"""Widths and JPEG qualities to try until a figure is small enough."""


class Html(str):
    """Markup, which is not escaped again; a plain `str` always is."""

    __slots__ = ()


class Tile(NamedTuple):
    """The headline of a part: a number and what it says."""

    number: str
    text: str


Section = list["Html | None"]
"""The content of a report section; None stands for a figure that cannot be read."""


def _no_tiles(_: Mapping[str, Any]) -> list[Tile]:
    return []


class Part(NamedTuple):
    """One part of an explanation, from measurement to report."""

    title: str
    """Heading of the report section."""
    files: tuple[str, ...]
    """Files that a finished part always leaves."""
    reads: type[Collector]
    """What the part takes from the pass over the images."""
    make: Callable[[Subject, Any, Progress], dict[str, Any]]
    """Measure, draw and write, given the result of the collector; return the headline numbers."""
    section: Callable[[Findings], Section | None]
    """Build the report section, or return None if files are missing."""
    method: tuple[str, str]
    """How the part is measured: a title and a paragraph."""
    tiles: Callable[[Mapping[str, Any]], list[Tile]] = _no_tiles
    """Build the headline tiles from the headline numbers."""
    judge: type[Collector] | None = None
    """What the part also takes from the pass, and from a file, if another encoder judges units."""


def write_json(subject: Subject, name: str, record: Mapping[str, Any]) -> None:
    """Write a record to the folder of explanations."""
    content = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(subject.folder / name, content.encode())


def write_array(subject: Subject, name: str, values: Tensor) -> None:
    """Write a tensor as float32 to the folder of explanations."""
    content = io.BytesIO()
    np.save(content, values.float().numpy())
    write_atomically(subject.folder / name, content.getvalue())


class Findings:
    """The files of finished parts and the images they show; missing or damaged ones are None."""

    def __init__(self, subject: Subject, summary: Mapping[str, Any]) -> None:
        self.subject = subject
        self.summary = summary
        self._thumbnails: dict[int, Picture | None] = {}

    def record(self, part: str, file: str) -> dict[str, Any] | None:
        """Return the JSON file of a part, if the part belongs to this summary."""
        if part not in self.summary["parts"]:
            return None
        try:
            found = json.loads((self.subject.folder / file).read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def figure(self, part: str, alt: str, *caption: str, file: str = "") -> Html | None:
        """Return a figure of a part, if the part belongs to this summary."""
        if part not in self.summary["parts"]:
            return None
        return figure(self.subject.folder / (file or f"{part}.png"), alt, *caption)

    @cached_property
    def _pictures(self) -> Pictures:
        return Pictures(self.subject)

    def thumbnail(self, index: int, alt: str) -> Html:
        """Return a small image as the encoder sees it; empty if it can no longer be read."""
        if index not in self._thumbnails:
            try:
                small = self._pictures.thumbnail(index)
                self._thumbnails[index] = thumbnail_picture(small)
            except UnreadableImage:
                self._thumbnails[index] = None
        picture = self._thumbnails[index]
        return Html() if picture is None else image(picture, alt)

    def label(self, index: int) -> str | None:
        """Return the name of an image's label, if it has one."""
        source = self.subject.source
        value = -1 if source.labels is None else int(source.labels[index])
        if value < 0:
            return None
        return source.classes[value] if value < len(source.classes) else str(value)


def percent(share: float, digits: int = 1) -> str:
    """Format a share in percent."""
    return f"{100 * share:.{digits}f} %"


def named(text: str) -> Html:
    """Return a name from the user's files, isolated so that its direction affects nothing else."""
    return element("span", text, class_="name")


def element(name: str, /, *content: str, **attributes: object) -> Html:
    """Return an element; `class_` and `aria_label` become class and aria-label.

    Attributes that are None are left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    opening = f"<{name}{written}>"
    return Html(opening if name in _VOID else f"{opening}{join(content)}</{name}>")


def join(parts: Iterable[str], between: str = "") -> Html:
    """Concatenate parts, escaping those that are not markup."""
    return Html(
        between.join(part if isinstance(part, Html) else html.escape(part) for part in parts)
    )


def link(target: str, *content: str) -> Html:
    """Return a link to another place on the page."""
    return element("a", *content, href=f"#{target}")


def paragraph(*content: str) -> Html:
    """Return a paragraph."""
    return element("p", *content)


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> Html:
    """Return a table with row headings; columns after the first `texts` hold numbers.

    A table wider than the page scrolls horizontally.
    """
    looks = [None if place < texts else "number" for place in range(len(head))]
    headings = [
        element("th", title, scope="col", class_=look)
        for title, look in zip(head, looks, strict=True)
    ]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(
                element("td", cell, class_=look)
                for cell, look in zip(row[1:], looks[1:], strict=True)
            ),
        )
        for row in rows
    ]
    made = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *headings)),
        element("tbody", *body),
    )
    return _scrolling(made, caption)


def _scrolling(content: Html, label: str) -> Html:
    # In the tab order, so that it can be scrolled without a mouse.
    return element("div", content, class_="wide", tabindex="0", role="region", aria_label=label)


class Picture(NamedTuple):
    """An image as a data URI, and the size at which it is shown."""

    uri: str
    width: int
    height: int


def _uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def thumbnail_picture(small: Image.Image) -> Picture:
    """Embed a small image as JPEG."""
    return Picture(_uri(_jpeg(small, 85), "jpeg"), *small.size)


def figure_picture(content: bytes) -> Picture:
    """Embed a PNG figure unchanged or, if it is large, as a smaller JPEG."""
    with Image.open(io.BytesIO(content)) as opened:
        # Figures have 150 dots per inch and pages 96: at this size their text is legible.
        width, height = round(opened.width / _DENSITY), round(opened.height / _DENSITY)
        if len(content) <= LARGEST_FIGURE:
            return Picture(_uri(content, "png"), width, height)
        drawn = opened.convert("RGB")
    for most, quality in _SMALLER:
        if drawn.width > most:
            size = (most, round(drawn.height * most / drawn.width))
            drawn = drawn.resize(size, Image.Resampling.LANCZOS)
        content = _jpeg(drawn, quality)
        if len(content) <= LARGEST_FIGURE:
            break
    return Picture(_uri(content, "jpeg"), width, height)


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=quality, optimize=True)
    return content.getvalue()


def image(picture: Picture, alt: str, look: str | None = None) -> Html:
    """Return an image with its size, which keeps the page from jumping while it loads."""
    width, height = picture.width, picture.height
    return element("img", src=picture.uri, alt=alt, width=width, height=height, class_=look)


def figure(path: Path, alt: str, *caption: str) -> Html | None:
    """Return the figure in a PNG file, or None if it cannot be read."""
    try:
        picture = figure_picture(path.read_bytes())
    except OSError:  # includes Pillow's error for a damaged image
        return None
    look = "panels" if picture.width > _ONE_PANEL else None
    shown = _scrolling(image(picture, alt, look), "Figure: " + alt.split(":", maxsplit=1)[0])
    return element("figure", shown, element("figcaption", *caption), class_="plot")
