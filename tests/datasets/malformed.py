"""Damaged image files, by file name, for the tests of every source.

`MALFORMED` maps a name to (bytes, a phrase of the reason that must be given).
"""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image


def picture(width: int = 48, height: int = 40, seed: int = 0) -> Image.Image:
    """A noisy RGB picture, so that compressed data are long enough to be cut."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, bits: int = 8, color: int = 2) -> bytes:
    """A PNG with any header and any image data, checksums right."""
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    chunks = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def patched(data: bytes, offset: int, replacement: bytes) -> bytes:
    return data[:offset] + replacement + data[offset + len(replacement) :]


def _jpeg_of_size(width: int, height: int) -> bytes:
    """A JPEG whose frame header claims another size."""
    data = encoded(picture(), "JPEG")
    start = data.index(b"\xff\xc0") + 5
    return patched(data, start, struct.pack(">HH", height, width))


def _bmp_of_size(width: int, height: int) -> bytes:
    return patched(encoded(picture(), "BMP"), 18, struct.pack("<ii", width, height))


def _cut(file_format: str, share: float, **options: object) -> bytes:
    data = encoded(picture(), file_format, **options)
    return data[: int(len(data) * share)]


def _flipped_png_data() -> bytes:
    data = encoded(picture(), "PNG")
    start = data.index(b"IDAT") + 40
    return patched(data, start, bytes(byte ^ 0xFF for byte in data[start : start + 60]))


def _jpegs() -> dict[str, tuple[bytes, str]]:
    whole = encoded(picture(), "JPEG")
    return {
        "half.jpg": (_cut("JPEG", 0.5), "truncated JPEG"),
        "tenth-of-scan.jpg": (whole[: whole.index(b"\xff\xda") + 40], "truncated JPEG"),
        "no-scan.jpg": (whole[: whole.index(b"\xff\xda")], "JPEG"),
        "half-progressive.jpg": (_cut("JPEG", 0.5, progressive=True), "truncated JPEG"),
        "header-only.jpg": (whole[:20], "JPEG"),
        "signature-only.jpg": (b"\xff\xd8\xff", "damaged JPEG header"),
        "end-after-start.jpg": (b"\xff\xd8\xff\xd9", "damaged JPEG header"),
        "zero-height.jpg": (_jpeg_of_size(48, 0), "JPEG"),
        "claims-to-be-huge.jpg": (_jpeg_of_size(65_000, 65_000), "pixels"),
        "no-tables.jpg": (whole[:2] + whole[whole.index(b"\xff\xc0") :], "damaged JPEG"),
    }


def _pngs() -> dict[str, tuple[bytes, str]]:
    whole = encoded(picture(), "PNG")
    zeros = zlib.compress(b"\0" * 1000)
    return {
        "half.png": (_cut("PNG", 0.5), "truncated PNG"),
        "header-only.png": (whole[:33], "PNG"),
        "signature-only.png": (whole[:8], "PNG"),
        "bomb.png": (png(40_000, 40_000, zeros), "pixels"),
        "long-bomb.png": (png(2**31 - 1, 1, zeros), "pixels"),
        "zero-width.png": (png(0, 10, zeros), "PNG"),
        "bad-header-checksum.png": (patched(whole, 29, b"\0\0\0\0"), "PNG"),
        "bad-compression.png": (_flipped_png_data(), "PNG"),
        "not-compressed.png": (png(16, 16, b"these are not zlib data"), "PNG"),
        "too-few-rows.png": (png(64, 64, zeros), "truncated PNG"),
        "impossible-depth.png": (png(16, 16, zeros, bits=7), "PNG"),
        "impossible-color.png": (png(16, 16, zeros, color=5), "PNG"),
        "without-data.png": (whole[:33] + png_chunk(b"IEND", b""), "PNG"),
        "nameless-chunk.png": (patched(whole, 37, b"\0\0\0\0"), "PNG"),
    }


def _others() -> dict[str, tuple[bytes, str]]:
    tiff = encoded(picture(), "TIFF")
    return {
        "half.webp": (_cut("WEBP", 0.5), "WebP"),
        "header-only.webp": (_cut("WEBP", 1.0)[:16], "WebP"),
        "other-riff.webp": (b"RIFF\x24\0\0\0WAVEfmt " + b"\0" * 40, "damaged WebP"),
        "half.bmp": (_cut("BMP", 0.5), "truncated BMP"),
        "header-only.bmp": (_cut("BMP", 1.0)[:20], "BMP"),
        "claims-to-be-huge.bmp": (_bmp_of_size(50_000, 50_000), "pixels"),
        "half.tif": (_cut("TIFF", 0.5), "TIFF"),
        "half-compressed.tif": (_cut("TIFF", 0.5, compression="tiff_lzw"), "TIFF"),
        "directory-beyond-end.tiff": (patched(tiff, 4, b"\xff\xff\xff\x7f"), "TIFF"),
        "signature-only.tiff": (tiff[:4], "damaged TIFF header"),
        "half.gif.png": (_cut("GIF", 0.4), "GIF"),
    }


def _strangers() -> dict[str, tuple[bytes, str]]:
    noise = np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    return {
        "empty.jpg": (b"", "empty file"),
        "empty.png": (b"", "empty file"),
        "text.jpg": (b"this is a text, not a picture\n" * 20, "not an image"),
        "page.webp": (b"<!DOCTYPE html><html><body>404</body></html>", "not an image"),
        "noise.png": (noise, "not an image"),
        "zeros.bmp": (b"\0" * 4096, "not an image"),
        "drawing.png": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        "program.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        "pointer.jpg": (b"version https://git-lfs.github.com/spec/v1\n", "not an image"),
    }


_FAMILIES: tuple[Callable[[], dict[str, tuple[bytes, str]]], ...] = (
    _jpegs,
    _pngs,
    _others,
    _strangers,
)
MALFORMED: dict[str, tuple[bytes, str]] = {
    name: case for family in _FAMILIES for name, case in family().items()
}


def write_malformed(folder: Path) -> list[str]:
    """Write every case into `folder`; returns their names, sorted."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (data, _) in MALFORMED.items():
        (folder / name).write_bytes(data)
    return sorted(MALFORMED)
