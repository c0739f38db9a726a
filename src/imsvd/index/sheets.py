"""Results for people and programs: contact sheets, and lists of paths that `imsvd` reads as DATA."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from imsvd.datasets import UnreadableImage
from imsvd.datasets.layouts import is_image_name
from imsvd.errors import InputError
from imsvd.files import write_atomically
from imsvd.index.contents import Contents, IndexedImage

SIDE = 160
COLUMNS = 6
MOST_PICTURES = 600
_LINE = 14
_LETTERS = 25
"""Characters of a caption that fit below a picture."""


def contact_sheet(
    index: Contents, pictures: Sequence[tuple[int, Sequence[str]]], path: str | Path
) -> None:
    """Write a PNG file with images of an index and lines of text below each of them.

    Images whose file no longer exists, or cannot be read, are shown as gray squares that say so.
    """
    if not pictures:
        raise InputError(f"{path} is not written: nothing was found.")
    shown = pictures[:MOST_PICTURES]
    lines = max(len(captions) for _, captions in shown)
    height = SIDE + _LINE * lines + 10
    columns = min(COLUMNS, len(shown))
    size = (columns * (SIDE + 10) + 10, -(-len(shown) // columns) * height + 10)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for number, (position, captions) in enumerate(shown):
        left, top = number % columns * (SIDE + 10) + 10, number // columns * height + 10
        picture = _thumbnail(index, position)
        sheet.paste(picture, (left + (SIDE - picture.width) // 2, top))
        for line, caption in enumerate(captions):
            text = caption if len(caption) <= _LETTERS else caption[: _LETTERS - 1] + "…"
            # The font that Pillow always has knows Latin letters only.
            plain = text.encode("latin-1", "replace").decode("latin-1")
            draw.text((left, top + SIDE + 2 + _LINE * line), plain, fill="black")
    content = io.BytesIO()
    sheet.save(content, "PNG")
    write_atomically(Path(path), content.getvalue())


def _thumbnail(index: Contents, position: int) -> Image.Image:
    try:
        picture = Image.fromarray(index.read(position).permute(1, 2, 0).numpy())
    except UnreadableImage as error:
        picture = Image.new("RGB", (SIDE, SIDE), "lightgray")
        ImageDraw.Draw(picture).text((8, SIDE // 2 - 6), error.reason[:_LETTERS], fill="black")
        return picture
    scale = SIDE / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def write_paths(index: Contents, positions: Sequence[int], path: str | Path) -> None:
    """Write the paths of images to a text file that `imsvd` reads as DATA."""
    if Path(path).suffix.lower() not in (".txt", ".lst"):
        raise InputError(f"{path} must end in .txt or .lst, so that imsvd can read it as DATA.")
    if not positions:
        raise InputError(f"{path} is not written: nothing was found.")
    write_atomically(Path(path), path_list(index, positions))


def path_list(index: Contents, positions: Sequence[int]) -> bytes:
    """Return the paths of images as the content of a list that `imsvd` reads as DATA."""
    return b"".join(_line_of(index.image(position)) for position in positions)


def _line_of(image: IndexedImage) -> bytes:
    name = image.path
    if not image.is_file:
        raise InputError(f"{name} is not a file; a list can only name files.")
    if any(sign in name for sign in "\n\r\t") or name != name.strip() or not is_image_name(name):
        raise InputError(f"{name!r} cannot stand in a list of paths; rename the file.")
    return f"{name}\n".encode("utf-8", "surrogateescape")
