"""HTML made of elements: every text is escaped unless it is markup already, every image embedded."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LARGEST_FIGURE = 300_000
"""Bytes of a figure above which it is made smaller."""

_DENSITY = 150 / 96
_ONE_PANEL = 640
"""Widest figure that can still be read on a phone."""

_VOID = frozenset({"img", "meta", "br"})
_SMALLER = ((1600, 85), (1400, 75), (1200, 65), (1000, 50))
"""Width and JPEG quality, tried in turn until a figure is small enough."""


class Html(str):
    """Markup, which is not escaped again; a plain `str` always is."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: object) -> Html:
    """An element with its content; `class_` and `aria_label` stand for class and aria-label.

    An attribute that is None is left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    opening = f"<{name}{written}>"
    return Html(opening if name in _VOID else f"{opening}{join(content)}</{name}>")


def join(parts: Iterable[str], between: str = "") -> Html:
    """Parts one after the other, those that are not markup escaped."""
    return Html(
        between.join(part if isinstance(part, Html) else html.escape(part) for part in parts)
    )


def link(target: str, *content: str) -> Html:
    """A link to another place of the page."""
    return element("a", *content, href=f"#{target}")


def paragraph(*content: str) -> Html:
    """A paragraph."""
    return element("p", *content)


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> Html:
    """A table whose first column heads its rows; columns after the first `texts` hold numbers.

    It scrolls by itself where it is wider than the page.
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
    # Reached by the tab key, so that it can be scrolled without a mouse.
    return element("div", content, class_="wide", tabindex="0", role="region", aria_label=label)


class Picture(NamedTuple):
    """An image as a data URI, and the size at which it is shown."""

    uri: str
    width: int
    height: int


def _uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def figure_picture(content: bytes) -> Picture:
    """A PNG figure as it is or, where it is large, as a smaller JPEG."""
    with Image.open(io.BytesIO(content)) as opened:
        # Figures have 150 dots per inch, a page has 96: shown so, their text has its own size.
        width, height = round(opened.width / _DENSITY), round(opened.height / _DENSITY)
        if len(content) <= LARGEST_FIGURE:
            return Picture(_uri(content, "png"), width, height)
        figure = opened.convert("RGB")
    for most, quality in _SMALLER:
        if figure.width > most:
            size = (most, round(figure.height * most / figure.width))
            figure = figure.resize(size, Image.Resampling.LANCZOS)
        content = _jpeg(figure, quality)
        if len(content) <= LARGEST_FIGURE:
            break
    return Picture(_uri(content, "jpeg"), width, height)


def thumbnail(pixels: NDArray[np.uint8], side: int) -> Picture:
    """A small square picture of (height, width, 3) pixels."""
    small = Image.fromarray(pixels).resize((side, side), Image.Resampling.LANCZOS)
    return Picture(_uri(_jpeg(small, 85), "jpeg"), side, side)


def _jpeg(image: Image.Image, quality: int) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality, optimize=True)
    return content.getvalue()


def image(picture: Picture, alt: str, look: str | None = None) -> Html:
    """An image, with the size that keeps the page from jumping while it is read."""
    return element(
        "img",
        src=picture.uri,
        alt=alt,
        width=picture.width,
        height=picture.height,
        class_=look,
    )


def figure(path: Path, alt: str, *caption: str) -> Html | None:
    """The figure in a PNG file, on white as it was drawn; nothing if it cannot be read."""
    try:
        picture = figure_picture(path.read_bytes())
    except OSError:  # Pillow's own error for a damaged image is one of these
        return None
    look = "panels" if picture.width > _ONE_PANEL else None
    shown = _scrolling(image(picture, alt, look), "Figure: " + alt.split(":", maxsplit=1)[0])
    return element("figure", shown, element("figcaption", *caption), class_="plot")
