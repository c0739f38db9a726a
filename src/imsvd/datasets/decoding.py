"""From the bytes of an image file to uint8 RGB, or to a short reason why that is impossible.

Every image is decoded as a viewer shows it: rotated according to EXIF, transparency blended with
white, the first frame of an animation, 16-bit values scaled (not clipped) to 8 bits.

Ordinary JPEGs can also be decoded in part. libjpeg-turbo, through `simplejpeg`, decodes at a half,
a quarter or an eighth of the size for less work. Most of the remaining work is reading Huffman
codes, which are stored row by row: rows below the lowest crop are skipped by decoding with a header
that declares fewer rows. Anything unusual is left to `decode_image`, which also finds the reason for
a failure.
"""

import contextlib
import importlib.util
import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

HAS_SIMPLEJPEG = importlib.util.find_spec("simplejpeg") is not None
REDUCTIONS = (8, 4, 2)

# Pillow's own limit, checked against the header before pixels are allocated.
MAX_PIXELS = 178_956_970
# Far above any photograph. Archives may declare any size, and the declared size is allocated.
MAX_FILE_BYTES = 256 * 1024**2
TOO_LARGE = f"a file of more than {MAX_FILE_BYTES // 1024**2} MiB"

# Naming the formats keeps Pillow from trying fifty others, some of which start programs (EPS).
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

_REASONS: dict[type[BaseException], str] = {
    FileNotFoundError: "missing file",
    NotADirectoryError: "missing file",
    IsADirectoryError: "a folder, not a file",
    PermissionError: "no permission to read it",
    MemoryError: "not enough memory to read it",
    ValueError: "not a possible file name",
}

_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_OTHER_FRAMES = {0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_EXIF, _SCAN, _END = 0xE1, 0xDA, b"\xff\xd9"

Pixels = NDArray[np.uint8]


class UnreadableImage(Exception):  # noqa: N818 - it names what was found, which is quarantined
    """An image cannot be decoded; `reason` is a short phrase such as "truncated JPEG"."""

    def __init__(self, identity: str, reason: str) -> None:
        super().__init__(identity, reason)  # both as arguments, so that workers can pickle it
        self.identity = identity
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.identity}: {self.reason}"


def read_file(path: Path, identity: str) -> bytes:
    """Return the contents of a file of plausible size, or raise `UnreadableImage`."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(status.st_mode):
            # Opening a pipe could block forever.
            raise UnreadableImage(identity, "not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise UnreadableImage(identity, TOO_LARGE)
        return path.read_bytes()
    except (OSError, MemoryError, ValueError) as error:
        reason = _REASONS.get(type(error)) or os.strerror(getattr(error, "errno", None) or 5)
        raise UnreadableImage(identity, reason) from error


def decode_image(data: bytes | Path, identity: str) -> Tensor:
    """Decode a file or its bytes to uint8 (3, height, width) RGB.

    Raises:
        UnreadableImage: if that is impossible for any reason.
    """
    with _opened(data, identity) as image:
        image.load()
        # Read after loading: Pillow rotates TIFFs itself while loading and then drops the tag.
        orientation = _orientation(image)
        pixels = _upright(np.array(_to_rgb(image)), orientation)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def read_image_size(data: bytes | Path, identity: str) -> tuple[int, int]:
    """Return the (height, width) that `decode_image` would give, from the header alone."""
    with _opened(data, identity) as image:
        width, height = image.size
        # Pillow gives the size of a TIFF after rotation.
        rotated = image.format != "TIFF" and _orientation(image) >= 5
        return (width, height) if rotated else (height, width)


@contextlib.contextmanager
def _opened(data: bytes | Path, identity: str) -> Iterator[Image.Image]:
    """Open an image and check its size; any error in the body becomes `UnreadableImage`."""
    kind = ""
    try:
        opened = io.BytesIO(data) if isinstance(data, bytes) else data.open("rb")
        with _quiet_pillow, opened as stream:
            kind = _sniff(stream)
            with Image.open(stream, formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    # Damaged files make Pillow's parsers raise almost anything: OSError, SyntaxError, ValueError,
    # struct.error, IndexError, zlib.error, …
    except Exception as error:
        raise UnreadableImage(identity, _reason(error, kind)) from error


def _sniff(stream: BinaryIO) -> str:
    """Return the format that the first bytes indicate, "empty" or "" (unknown)."""
    head = stream.read(16)
    stream.seek(0)
    if not head:
        return "empty"
    return next((kind for magic, kind in _SIGNATURES.items() if head.startswith(magic)), "")


def _reason(error: Exception, kind: str) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {MAX_PIXELS:,} pixels"
    if type(error) in _REASONS and not isinstance(error, ValueError):
        return _REASONS[type(error)]
    if kind == "empty":
        return "empty file"
    if not kind:
        return "not an image"
    if isinstance(error, UnidentifiedImageError):
        return f"damaged {kind} header"
    truncated = isinstance(error, EOFError) or "truncated" in str(error).lower()
    return f"{'truncated' if truncated else 'damaged'} {kind}"


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; damaged EXIF data counts as 1."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # like the image parsers, it raises almost anything
        return 1
    return orientation if orientation in range(2, 9) else 1


def _upright(pixels: NDArray[Any], orientation: int) -> Pixels:
    """Rotate (height, width, 3) pixels upright without copying."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    # The axes that remain to be mirrored after the transposition:
    mirror_rows = orientation in (3, 4, 7, 8)
    mirror_columns = orientation in (2, 3, 6, 7)
    return pixels[:: -1 if mirror_rows else 1, :: -1 if mirror_columns else 1]


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        # Converted directly from a palette to RGBA: RGB would lose the transparent entries.
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _to_eight_bits(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Scale gray values (height, width) of more than 8 bits to 0-255.

    Integers within 0-65,535 are 16-bit data, and floats within 0-1 are fractions of white. Other
    ranges have no defined white point and are stretched from their minimum to their maximum.
    """
    deep = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(deep.min()), float(deep.max())
    white = 1.0 if np.issubdtype(values.dtype, np.floating) else 65535.0
    if low < 0 or high > white:
        deep, white = deep - low, max(high - low, 1.0)
    return np.rint(deep * 255.0 / white).astype(np.uint8)


class _QuietPillow:
    """Silences Pillow's warnings while any thread is decoding.

    The first thread to enter changes the filters and the last to leave restores them. With one
    `warnings.catch_warnings` per thread, overlapping threads would restore the wrong ones.
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


class PlainJpeg(NamedTuple):
    """A JPEG of one or three 8-bit channels, and its header.

    Attributes:
        data: the file.
        height: of the stored image, before rotation.
        width: of the stored image, before rotation.
        frame: position of the frame header in the file.
        sampling: largest vertical sampling factor; a row of blocks is 8 * sampling pixels high.
        one_pass: whether all rows are stored in order in a single, complete scan.
        orientation: from EXIF, 1 to 8.
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
        """Return (height, width) after rotation."""
        rotated = self.orientation >= 5
        return (self.width, self.height) if rotated else (self.height, self.width)


class NotPlainError(Exception):
    """The image needs the general decoder, perhaps to find out why it is unreadable."""


def read_header(data: bytes) -> PlainJpeg:
    """Parse the headers of a JPEG; raise `NotPlainError` for anything unusual."""
    frame, orientation = 0, 1
    for marker, start in _segments(data):
        payload = start + 4
        if marker in _OTHER_FRAMES or (marker in (_BASELINE, _EXTENDED, _PROGRESSIVE) and frame):
            raise NotPlainError
        if marker in (_BASELINE, _EXTENDED, _PROGRESSIVE):
            frame = start
        elif marker == _EXIF and data.startswith(b"Exif\0\0", payload):
            if orientation != 1:
                raise NotPlainError  # two orientations
            end = start + 2 + int.from_bytes(data[start + 2 : payload], "big")
            orientation = _exif_orientation(data[payload:end])
        elif marker == _SCAN and frame:
            return _plain(data, frame, orientation, start)
    raise NotPlainError


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (marker, position) of each segment up to the first scan."""
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
        raise NotPlainError  # truncated within the headers
    height = int.from_bytes(data[frame + 5 : frame + 7], "big")
    width = int.from_bytes(data[frame + 7 : frame + 9], "big")
    factors = [data[frame + 11 + 3 * channel] for channel in range(channels)]
    if precision != 8 or not 0 < height * width <= MAX_PIXELS:
        raise NotPlainError
    # A truncated file lacks the end marker; it is decoded up to where it breaks off.
    one_pass = (
        data[frame + 1] != _PROGRESSIVE and data[scan + 4] == channels and data.rfind(_END) > scan
    )
    sampling = max(factor & 15 for factor in factors)
    if not sampling:
        raise NotPlainError
    return PlainJpeg(data, height, width, frame, sampling, one_pass, orientation)


def _exif_orientation(segment: bytes) -> int:
    exif = Image.Exif()
    try:
        exif.load(segment)
        orientation = exif.get(_ORIENTATION_TAG, 1)
    except Exception as error:  # the EXIF parser raises almost anything
        raise NotPlainError from error
    return orientation if orientation in range(2, 9) else 1


def decode_rows(jpeg: PlainJpeg, bottom: int, reduction: int = 1) -> Pixels:
    """Decode at least the rows above `bottom`, at 1 / `reduction` of the size.

    Args:
        jpeg: the image.
        bottom: number of rows needed, counted from the top after rotation.
        reduction: 1, 2, 4 or 8.

    Returns:
        uint8 (rows, width, 3) RGB, upright; pixel (y, x) covers `reduction` x `reduction` pixels
        of the full image, starting at (reduction * y, reduction * x).

    Raises:
        NotPlainError: if the data are damaged.
    """
    import simplejpeg  # noqa: PLC0415 - an optional package

    data, height = jpeg.data, jpeg.height
    # Smooth upsampling of color needs one more row of color, which spans `sampling` rows.
    block = 8 * jpeg.sampling
    needed = -(-(bottom + 2 * jpeg.sampling) // block) * block
    shortened = jpeg.one_pass and jpeg.orientation == 1 and needed < height
    if shortened:
        data, height = _with_height(jpeg, needed), needed
    size = -(-height // reduction), -(-jpeg.width // reduction)
    try:
        # For the library the skipped rows are "extraneous bytes", an error in strict mode.
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
