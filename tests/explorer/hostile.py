"""Files that somebody who means harm would upload, by name, each with the statuses that are right."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from tests.datasets.malformed import MALFORMED, encoded, picture, png, png_chunk

SECRET = b"<script>alert('payload')</script>"
ACCEPTED, REFUSED, TOO_LARGE = (200,), (400,), (400, 413)

Files = dict[str, tuple[bytes, tuple[int, ...]]]


def polyglots() -> Files:
    """Images that are also something else; they are accepted, and only their pixels are kept."""
    jpeg, gif, webp = (encoded(picture(), kind) for kind in ("JPEG", "GIF", "WEBP"))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("page.html", SECRET)
    text = png_chunk(b"tEXt", b"Comment\0" + SECRET)
    plain = encoded(picture(), "PNG")
    comment = b"\xff\xfe" + struct.pack(">H", len(SECRET) + 2) + SECRET
    return {
        "jpeg and zip": (jpeg + archive.getvalue(), ACCEPTED),
        "jpeg and html": (jpeg[:2] + comment + jpeg[2:], ACCEPTED),
        "png and html": (plain[:33] + text + plain[33:], ACCEPTED),
        "gif and script": (gif + b"*/=1;" + SECRET, ACCEPTED),
        "webp and script": (webp + SECRET, ACCEPTED),
        "pdf and jpeg": (b"%PDF-1.4\n" + SECRET + jpeg, REFUSED),
        "html and jpeg": (SECRET + jpeg, REFUSED),
    }


def animations(frames: int = 60) -> Files:
    """Moving images; the first frame is used."""
    still = [picture(seed=number) for number in range(frames)]
    options = {"save_all": True, "append_images": still[1:], "duration": 10, "loop": 0}
    return {kind: (encoded(still[0], kind, **options), ACCEPTED) for kind in ("GIF", "WEBP", "PNG")}


def bombs() -> Files:
    """Small files that claim, or unpack to, far more than they are."""
    white = zlib.compress(bytes(100_000_000), 9)
    start = png(48, 40, zlib.compress(bytes(40 * 145)))
    gif = bytearray(encoded(picture(), "GIF"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    return {
        "png of 100 MP": (png(10_000, 10_000, zlib.compress(bytes(1000))), TOO_LARGE),
        "png of 4 thousand MP": (png(65_535, 65_535, zlib.compress(bytes(1000))), TOO_LARGE),
        "png whose size overflows": (png(2**31 - 1, 2**31 - 1, b""), TOO_LARGE),
        "png with a text of 100 MB": (
            start[:33] + png_chunk(b"zTXt", b"a\0\0" + white) + start[33:],
            (200, 400),
        ),
        "png with a profile of 100 MB": (
            start[:33] + png_chunk(b"iCCP", b"a\0\0" + white) + start[33:],
            (200, 400),
        ),
        "png that unpacks to more than its pixels": (png(48, 40, white), (200, 400)),
        "gif of 4 thousand MP": (bytes(gif), TOO_LARGE),
        "strip": (png(60_000, 2, zlib.compress(bytes(1000))), REFUSED),
        "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", REFUSED),
        "svg with a billion laughs": (
            b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY a 'ha'><!ENTITY b '&a;&a;'>]><svg>&b;</svg>",
            REFUSED,
        ),
    }


def damaged(count: int) -> Iterator[bytes]:
    """Yield images of every format with bytes changed at random."""
    whole = [encoded(picture(), kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")]
    random = np.random.default_rng(0)
    for number in range(count):
        content = bytearray(whole[number % len(whole)])
        for place in random.integers(0, len(content), 1 + number % 8):
            content[place] = random.integers(256)
        # Headers are the interesting part.
        content[random.integers(4, 60)] = random.integers(256)
        yield bytes(content)


def largest() -> Files:
    """Images of just the size that is allowed, in the modes that need the most memory."""
    side = 7_990
    gray = Image.new("L", (side, side), 90)
    return {
        "jpeg": (encoded(gray.convert("RGB"), "JPEG", quality=50), ACCEPTED),
        "png with transparency": (
            encoded(Image.new("RGBA", (side, side), (9, 99, 9, 99)), "PNG", compress_level=1),
            ACCEPTED,
        ),
        "png of 16 bits": (
            encoded(Image.new("I;16", (side, side), 999), "PNG", compress_level=1),
            ACCEPTED,
        ),
        "tiff of floats": (
            encoded(gray.convert("F"), "TIFF", compression="tiff_adobe_deflate"),
            ACCEPTED,
        ),
    }


def small_files() -> Files:
    """Everything that takes little time to make."""
    broken: Files = {name: (content, TOO_LARGE) for name, (content, _) in MALFORMED.items()}
    return {**polyglots(), **animations(), **bombs(), **broken}
