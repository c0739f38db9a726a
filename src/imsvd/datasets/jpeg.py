"""JPEG files of the ordinary kind, decoded no further and no finer than their crops need.

libjpeg-turbo, through `simplejpeg`, can decode at a half, a quarter or an eighth of the size for
less work. Most of the work on a photograph is reading its Huffman codes, which stand in the order
of its rows: it is saved only below the lowest crop, by decoding a header that claims fewer rows.
Whatever is out of the ordinary is left to `decoding`, which also finds the reason for a failure.
"""

import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from imsvd.datasets.decoding import MAX_PIXELS

HAS_SIMPLEJPEG = importlib.util.find_spec("simplejpeg") is not None
REDUCTIONS = (8, 4, 2)

_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_OTHER_FRAMES = {0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_EXIF, _SCAN, _END = 0xE1, 0xDA, b"\xff\xd9"
_ORIENTATION_TAG = 0x0112

Pixels = npt.NDArray[np.uint8]


class PlainJpeg(NamedTuple):
    """A JPEG of one or three 8-bit channels, and what its header says.

    Attributes:
        data: the file.
        height: of the stored picture, before turning.
        width: likewise.
        frame: position of the frame header in the file.
        sampling: largest vertical sampling factor, so that a row of blocks is 8 times it high.
        one_pass: whether the rows stand in order in a single scan that is known to end.
        orientation: as EXIF says, 1 to 8.
    """

    data: bytes
    height: int
    width: int
    frame: int
    sampling: int
    one_pass: bool
    orientation: int

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) as a viewer shows it."""
        turned = self.orientation >= 5
        return (self.width, self.height) if turned else (self.height, self.width)


class NotPlainError(Exception):
    """The picture needs the general decoder, perhaps to find out why it cannot be read."""


def read_header(data: bytes) -> PlainJpeg:
    """Look through the headers of a JPEG; raises `NotPlainError` for anything unusual."""
    frame, orientation = 0, 1
    for marker, start in _segments(data):
        payload = start + 4
        if marker in _OTHER_FRAMES or (marker in (_BASELINE, _EXTENDED, _PROGRESSIVE) and frame):
            raise NotPlainError
        if marker in (_BASELINE, _EXTENDED, _PROGRESSIVE):
            frame = start
        elif marker == _EXIF and data.startswith(b"Exif\0\0", payload):
            if orientation != 1:
                raise NotPlainError  # two opinions
            end = start + 2 + int.from_bytes(data[start + 2 : payload], "big")
            orientation = _orientation(data[payload:end])
        elif marker == _SCAN and frame:
            return _plain(data, frame, orientation, start)
    raise NotPlainError


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """(marker, position) of each segment up to the first scan."""
    if not data.startswith(b"\xff\xd8\xff"):
        raise NotPlainError
    position = 2
    while position + 4 <= len(data):
        marker = data[position + 1]
        if data[position] != 0xFF or not 0xC0 <= marker <= 0xFE:
            return
        yield marker, position
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")


def _plain(data: bytes, frame: int, orientation: int, scan: int) -> PlainJpeg:
    if len(data) <= frame + 9 or data[frame + 9] not in (1, 3):
        raise NotPlainError
    precision, channels = data[frame + 4], data[frame + 9]
    if len(data) <= max(scan + 4, frame + 8 + 3 * channels):
        raise NotPlainError  # cut short within the headers
    height = int.from_bytes(data[frame + 5 : frame + 7], "big")
    width = int.from_bytes(data[frame + 7 : frame + 9], "big")
    factors = [data[frame + 11 + 3 * channel] for channel in range(channels)]
    if precision != 8 or not 0 < height * width <= MAX_PIXELS:
        raise NotPlainError
    # A file cut short has no end marker after its scan, and is then decoded to where it breaks off.
    one_pass = (
        data[frame + 1] != _PROGRESSIVE and data[scan + 4] == channels and data.rfind(_END) > scan
    )
    sampling = max(factor & 15 for factor in factors)
    if not sampling:
        raise NotPlainError
    return PlainJpeg(data, height, width, frame, sampling, one_pass, orientation)


def _orientation(segment: bytes) -> int:
    exif = Image.Exif()
    try:
        exif.load(segment)
        orientation = exif.get(_ORIENTATION_TAG, 1)
    except Exception as error:  # the EXIF parser lets escape whatever the damage provokes
        raise NotPlainError from error
    return orientation if orientation in range(2, 9) else 1


def decode_rows(jpeg: PlainJpeg, bottom: int, reduction: int = 1) -> Pixels:
    """Decode the rows above `bottom`, and perhaps more, at 1 / `reduction` of the size.

    Args:
        jpeg: the picture.
        bottom: how many rows are wanted, counted from the top as shown.
        reduction: 1, 2, 4 or 8.

    Returns:
        uint8 (rows, width, 3) RGB, upright; the pixel (y, x) of the reduced picture covers
        `reduction` pixels each way from (reduction * y, reduction * x) on.

    Raises:
        NotPlainError: if the data are damaged.
    """
    import simplejpeg  # noqa: PLC0415 - an optional package

    data, height = jpeg.data, jpeg.height
    # Smooth upsampling of color reads one more row of it, `sampling` rows of the picture.
    block = 8 * jpeg.sampling
    needed = -(-(bottom + 2 * jpeg.sampling) // block) * block
    shortened = jpeg.one_pass and jpeg.orientation == 1 and needed < height
    if shortened:
        data, height = _with_height(jpeg, needed), needed
    size = -(-height // reduction), -(-jpeg.width // reduction)
    try:
        # The rows left out are to the library "extraneous bytes", which strictness would refuse.
        pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=size[0], min_width=size[1], strict=not shortened
        )
    except ValueError as error:
        raise NotPlainError from error
    if pixels.shape[:2] != size:
        raise NotPlainError
    return _upright(pixels, jpeg.orientation)


def _with_height(jpeg: PlainJpeg, height: int) -> bytes:
    at = jpeg.frame + 5
    return b"".join((jpeg.data[:at], height.to_bytes(2, "big"), jpeg.data[at + 2 :]))


def _upright(pixels: npt.NDArray[Any], orientation: int) -> Pixels:
    """Turn as EXIF says, without copying."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    # After the transposition, these are the axes that remain to be mirrored.
    mirror_rows = orientation in (3, 4, 7, 8)
    mirror_columns = orientation in (2, 3, 6, 7)
    return pixels[:: -1 if mirror_rows else 1, :: -1 if mirror_columns else 1]
