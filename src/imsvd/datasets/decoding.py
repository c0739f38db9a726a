"""From the bytes of an image file to uint8 RGB, or to one short reason why not.

Every picture becomes what a person would see in a viewer: rotated as EXIF says, transparency
laid on white, the first frame of an animation, 16-bit values scaled (not clipped) to 8 bits.
"""

import contextlib
import io
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from imsvd.datasets.source import UnreadableImage

# Pillow's own refusal threshold. It is checked against the header, before pixels are allocated.
MAX_PIXELS = 178_956_970

# Naming the formats keeps Pillow from trying its fifty others, some of which start programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
_SIGNATURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG": "PNG",
    b"RIFF": "WebP",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"GIF8": "GIF",
}
_ORIENTATION_TAG = 0x0112
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(data: bytes | Path, identity: str) -> Tensor:
    """Decode a file or its bytes to uint8 (3, height, width) RGB.

    Raises:
        UnreadableImage: for whatever reason the picture cannot be had.
    """
    with _opened(data, identity) as image:
        image.load()
        upright = _upright(image)
        pixels = np.array(_to_rgb(upright))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def read_image_size(data: bytes | Path, identity: str) -> tuple[int, int]:
    """(height, width) as `decode_image` would give it, from the header alone."""
    with _opened(data, identity) as image:
        width, height = image.size
        # Of a TIFF, Pillow gives the size after turning.
        turned = image.format != "TIFF" and _orientation(image) >= 5
        return (width, height) if turned else (height, width)


@contextlib.contextmanager
def _opened(data: bytes | Path, identity: str) -> Iterator[Image.Image]:
    """An opened, plausible image; whatever goes wrong in the body becomes `UnreadableImage`."""
    kind = ""
    try:
        with _quiet_pillow, _stream(data) as stream:
            kind = _sniff(stream)
            with Image.open(stream, formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    # Pillow's parsers let escape whatever the damage provokes: OSError, SyntaxError, ValueError,
    # struct.error, IndexError, zlib.error, … A list would always miss one.
    except Exception as error:
        raise UnreadableImage(identity, _reason(error, kind)) from error


def _stream(data: bytes | Path) -> BinaryIO:
    return io.BytesIO(data) if isinstance(data, bytes) else data.open("rb")


def _sniff(stream: BinaryIO) -> str:
    """The format the first bytes promise; "empty" without any, "" when they promise none."""
    head = stream.read(16)
    stream.seek(0)
    if not head:
        return "empty"
    return next((kind for magic, kind in _SIGNATURES.items() if head.startswith(magic)), "")


def _reason(error: Exception, kind: str) -> str:
    by_type = {
        FileNotFoundError: "missing file",
        IsADirectoryError: "a folder, not a file",
        PermissionError: "no permission to read it",
        MemoryError: "not enough memory to decode it",
        Image.DecompressionBombError: f"more than {MAX_PIXELS:,} pixels",
    }
    if type(error) in by_type:
        return by_type[type(error)]
    if kind == "empty":
        return "empty file"
    if not kind:
        return "not an image"
    if isinstance(error, UnidentifiedImageError):
        return f"damaged {kind} header"
    truncated = isinstance(error, EOFError) or "truncated" in str(error).lower()
    return f"{'truncated' if truncated else 'damaged'} {kind}"


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; damaged EXIF data does not spoil a good picture."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # the EXIF parser raises as freely as the image parsers
        return 1
    return orientation if orientation in _TRANSPOSITIONS else 1


def _upright(image: Image.Image) -> Image.Image:
    # Asked after loading: Pillow turns TIFFs itself while loading and then drops the tag.
    orientation = _orientation(image)
    return image if orientation == 1 else image.transpose(_TRANSPOSITIONS[orientation])


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        # Straight from a palette to RGBA: by way of RGB the transparent entries would be lost.
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _to_eight_bits(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Scale deep gray values (height, width) to 0-255.

    Values within 0-65,535 are 16-bit data and floats within 0-1 are shares of white. Others have
    no agreed white point and are stretched between their least and greatest.
    """
    deep = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(deep.min()), float(deep.max())
    white = 1.0 if np.issubdtype(values.dtype, np.floating) else 65535.0
    if low < 0 or high > white:
        deep, white = deep - low, max(high - low, 1.0)
    return np.rint(deep * 255.0 / white).astype(np.uint8)


class _QuietPillow:
    """Silence Pillow's warnings while any thread is decoding.

    `warnings.catch_warnings` alone would, entered and left by overlapping threads, restore the
    wrong filters; so the first one in enters it and the last one out leaves it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._scope.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", module=r"PIL(\.|$)")
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._scope.close()


_quiet_pillow = _QuietPillow()
