"""Images that a person drops in: checked before they are decoded, kept in memory, soon forgotten."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from PIL import Image
from torch import Tensor

from imsvd.datasets import UnreadableImage
from imsvd.datasets.decoding import decode_image, read_image_size
from imsvd.encoder import Encoder
from imsvd.evaluation.features import center_crop
from imsvd.explorer.explained_run import AbsentError
from imsvd.explorer.pictures import seen_square
from imsvd.explorer.seeing import Seen, see

MAX_FILE_BYTES = 20 * 1024**2
MAX_PIXELS = 64_000_000
MAX_ASPECT = 50
MOST_IMAGES = 32
MOST_BYTES = 64 * 1024**2
LARGEST_VIEW = 256

_IDENTITY = "your image"


class UnusableImageError(ValueError):
    """The bytes are not an image that can be shown; the message is a sentence for their owner."""

    def __init__(self, sentence: str, *, too_large: bool = False) -> None:
        super().__init__(sentence)
        self.too_large = too_large


class Prepared(NamedTuple):
    """An image as one encoder sees it."""

    picture: Tensor
    """(3, size, size) uint8."""
    square: Image.Image
    """The same part of the image, at the largest size that is shown."""
    seen: Seen


class OwnImages:
    """Keeps the files by a random name, the newest ones, in bounded memory."""

    def __init__(self, most_images: int = MOST_IMAGES, most_bytes: int = MOST_BYTES) -> None:
        self._most_images, self._most_bytes = most_images, most_bytes
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._prepared: dict[str, dict[int, Prepared]] = {}
        self._lock = threading.Lock()

    def add(self, content: bytes, prepared: Mapping[int, Prepared]) -> str:
        """Keep a file and what runs have seen in it, and return its name; the oldest make room."""
        name = secrets.token_hex(16)
        with self._lock:
            self._files[name] = content
            self._prepared[name] = dict(prepared)
            while len(self._files) > 1 and self._is_full():
                oldest, _ = self._files.popitem(last=False)
                del self._prepared[oldest]
        return name

    def _is_full(self) -> bool:
        held = sum(len(content) for content in self._files.values())
        return len(self._files) > self._most_images or held > self._most_bytes

    def prepared(self, name: str, run: int, encoder: Encoder) -> Prepared:
        """A kept image as the encoder of the run with that number sees it."""
        with self._lock:
            content, known = self._files.get(name), self._prepared.get(name)
        if content is None or known is None:
            raise AbsentError("This image is not kept any more; drop it in again.")
        if run not in known:
            known[run] = prepare(content, encoder)
        return known[run]


def prepare(content: bytes, encoder: Encoder) -> Prepared:
    """Decode an image file and show it to an encoder."""
    image = decode_safely(content)
    size = encoder.description.size
    picture = center_crop(image, size)
    return Prepared(picture, seen_square(image, size, LARGEST_VIEW), see(encoder, picture))


def decode_safely(content: bytes) -> Tensor:
    """Decode a stranger's file, (3, height, width) uint8, unless its header promises too much."""
    try:
        height, width = read_image_size(content, _IDENTITY)
        if height * width > MAX_PIXELS:
            raise UnusableImageError(
                f"This image has {width:,} × {height:,} pixels, more than {MAX_PIXELS:,} in all; "
                "make it smaller.",
                too_large=True,
            )
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise UnusableImageError(
                f"This image is a strip of {width:,} × {height:,} pixels; crop it."
            )
        return decode_image(content, _IDENTITY)
    except UnreadableImage as error:
        raise UnusableImageError(
            f"This file cannot be read as an image: {error.reason}; "
            "give a JPEG, PNG, WebP, BMP, TIFF or GIF."
        ) from error
