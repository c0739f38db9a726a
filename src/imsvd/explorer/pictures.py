"""Pictures of what the encoder sees: crops, maps, thumbnails, and images uploaded by the user.

Every picture is encoded anew, so that no metadata of the original files reaches the browser.
"""

from __future__ import annotations

import io
import logging
import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from imsvd.datasets import UnreadableImage
from imsvd.datasets.decoding import decode_image, read_image_size
from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.evaluation.features import center_crop
from imsvd.explanations.grad_cam import grad_cam
from imsvd.explorer.explained_run import ExplainedRun, NotFoundError
from imsvd.files import write_atomically
from imsvd.information import codes, max_probabilities, soft_discretize
from imsvd.processors import usable_processors

THUMBNAIL_SIZES = (64, 128, 256)
MAX_THUMBNAIL_BYTES = 256 * 1024**2
CHEAP_PIXELS = 128 * 128
"""Up to this size, decoding an image is faster than opening a saved thumbnail."""
MAP_OPACITY = 0.6
QUALITY = 88

MAX_FILE_BYTES = 20 * 1024**2
MAX_PIXELS = 64_000_000
MAX_ASPECT = 50
MAX_UPLOADS = 32
MAX_UPLOAD_BYTES = 64 * 1024**2

# A picture of 100 million pixels needs more than a gigabyte until it has become a thumbnail.
making_thumbnail = threading.BoundedSemaphore(min(8, max(2, usable_processors())))
_logger = logging.getLogger(__name__)


def encoder_crop(image: Tensor, encoder_size: int, side: int) -> Image.Image:
    """Resample the part of an image (3, height, width) that `center_crop` keeps to `side` pixels."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    box = _crop_box(picture.width, picture.height, encoder_size)
    return picture.resize((side, side), Image.Resampling.LANCZOS, box=box)


def _crop_box(width: int, height: int, encoder_size: int) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of the part of an image that an encoder sees."""
    if width == height == encoder_size:
        return 0, 0, width, height
    # In whole pixels of the resized image, as `center_crop` cuts it.
    shorter = round(encoder_size * 256 / 224)
    sides = [int(shorter * side / min(width, height)) for side in (width, height)]
    left, top = (
        round((side - encoder_size) / 2) * whole / side
        for side, whole in zip(sides, (width, height), strict=True)
    )
    right, bottom = left + encoder_size * width / sides[0], top + encoder_size * height / sides[1]
    return left, top, right, bottom


def unit_map(encoder: Encoder, picture: Tensor, place: int) -> NDArray[np.float32]:
    """Return the Grad-CAM map of a unit for a uint8 picture (3, size, size): (size, size) in [0, 1]."""
    normalized = encoder.normalize(picture[None].to(encoder.mean.device))
    places = torch.tensor([place], device=normalized.device)
    found: NDArray[np.float32] = grad_cam(encoder, normalized, places)[0].cpu().numpy()
    return found


def overlay(picture: Image.Image, evidence: NDArray[np.floating[Any]]) -> Image.Image:
    """Draw a map (height, width) in [0, 1] in color over a gray version of a picture."""
    scaled = Image.fromarray(evidence.astype(np.float32)).resize(
        picture.size, Image.Resampling.BILINEAR
    )
    colors = mpl.colormaps["inferno"](np.clip(np.asarray(scaled), 0, 1))[..., :3] * 255
    # Gray, so that every color in the result comes from the map.
    gray = np.asarray(picture, dtype=np.float64).mean(2, keepdims=True)
    mixed = MAP_OPACITY * colors + (1 - MAP_OPACITY) * gray
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def as_jpeg(picture: Image.Image) -> bytes:
    """Encode a picture as a JPEG file without metadata."""
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


class Thumbnails:
    """Thumbnails of one run; those of large images are saved with its explanation."""

    def __init__(self, run: ExplainedRun, max_bytes: int = MAX_THUMBNAIL_BYTES) -> None:
        self._run = run
        self._root = run.folder / "thumbnails"
        self._folder = self._root / run.key
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._may_write = True

    def jpeg(self, image: int, size: int) -> bytes:
        """Return the thumbnail of an image, `size` pixels square."""
        self._run.row(image)
        path = self._folder / f"{size}-{image}.jpg"
        try:
            return path.read_bytes()
        except OSError:
            pass
        with making_thumbnail:
            picture = self._run.read(image)
            content = as_jpeg(encoder_crop(picture, self._run.description.size, size))
        if picture.shape[-2] * picture.shape[-1] > CHEAP_PIXELS:
            self._save(path, content)
        return content

    def _save(self, path: Path, content: bytes) -> None:
        with self._lock:
            if not self._may_write:
                return
            try:
                self._make_room(len(content))
                write_atomically(path, content)
                self._bytes = (self._bytes or 0) + len(content)
            except (InputError, OSError) as error:
                # A full or read-only disk makes thumbnails slower, but not impossible.
                self._may_write = False
                _logger.warning("thumbnails are not saved: %s", error)

    def _make_room(self, wanted: int) -> None:
        """Delete thumbnails of other explanations, and the oldest ones beyond the limit."""
        if self._bytes is None:
            for other in self._root.glob("*"):
                if other != self._folder:
                    shutil.rmtree(other, ignore_errors=True)
            self._bytes = sum(file.stat().st_size for file in self._folder.glob("*"))
        if self._bytes + wanted <= self._max_bytes:
            return
        files = ((file.stat(), file) for file in self._folder.glob("*"))
        newest_first = sorted(files, key=lambda pair: -pair[0].st_mtime_ns)
        self._bytes = 0
        for status, file in newest_first:
            # Well below the limit, so that not every new thumbnail triggers this.
            if self._bytes + status.st_size <= 0.8 * self._max_bytes - wanted:
                self._bytes += status.st_size
            else:
                file.unlink(missing_ok=True)


class UploadError(ValueError):
    """An uploaded file that cannot be used; the message is shown to the user."""

    def __init__(self, sentence: str, *, too_large: bool = False) -> None:
        super().__init__(sentence)
        self.too_large = too_large


class Encoded(NamedTuple):
    """Output of an encoder for one picture."""

    code: NDArray[np.unsignedinteger[Any]]
    confidence: NDArray[np.float32]
    features: NDArray[np.float32]


class Prepared(NamedTuple):
    """An uploaded image as the encoder of one run sees it."""

    picture: Tensor
    """(3, size, size) uint8."""
    square: Image.Image
    """The same crop, at the largest size that is shown."""
    encoded: Encoded


class Uploads:
    """The most recently uploaded files, in memory, under random names."""

    def __init__(self, max_images: int = MAX_UPLOADS, max_bytes: int = MAX_UPLOAD_BYTES) -> None:
        self._max_images, self._max_bytes = max_images, max_bytes
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._prepared: dict[str, dict[int, Prepared]] = {}
        self._lock = threading.Lock()

    def add(self, content: bytes, prepared: Mapping[int, Prepared]) -> str:
        """Keep a file, with its `Prepared` form by run number, and return its name."""
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
        return len(self._files) > self._max_images or held > self._max_bytes

    def prepared(self, name: str, run: int, encoder: Encoder) -> Prepared:
        """Return an uploaded image as the encoder of a run sees it."""
        with self._lock:
            content, known = self._files.get(name), self._prepared.get(name)
        if content is None or known is None:
            raise NotFoundError("The server no longer has this image; upload it again.")
        if run not in known:
            known[run] = prepare(content, encoder)
        return known[run]


def prepare(content: bytes, encoder: Encoder) -> Prepared:
    """Decode an uploaded file and encode it."""
    image = decode_upload(content)
    size = encoder.description.size
    picture = center_crop(image, size)
    square = encoder_crop(image, size, THUMBNAIL_SIZES[-1])
    return Prepared(picture, square, encode(encoder, picture))


@torch.no_grad()
def encode(encoder: Encoder, picture: Tensor) -> Encoded:
    """Return code, confidence and features of a uint8 picture (3, size, size)."""
    normalized = encoder.normalize(picture[None].to(encoder.mean.device))
    features = encoder.backbone(normalized)
    units = encoder.description.units
    q = soft_discretize(encoder.projector(features), units).cpu()
    dtype = np.uint8 if max(units) <= 256 else np.uint16
    return Encoded(
        codes(q, units)[0].numpy().astype(dtype),
        max_probabilities(q, units)[0].numpy(),
        features[0].cpu().numpy(),
    )


def decode_upload(content: bytes) -> Tensor:
    """Decode an untrusted file to uint8 (3, height, width), unless its header claims too large a size."""
    name = "your image"
    try:
        height, width = read_image_size(content, name)
        if height * width > MAX_PIXELS:
            raise UploadError(
                f"This image has {width:,} × {height:,} pixels; the limit is {MAX_PIXELS:,} pixels. "
                "Scale it down first.",
                too_large=True,
            )
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise UploadError(
                f"This image is a strip of {width:,} × {height:,} pixels; crop it first."
            )
        return decode_image(content, name)
    except UnreadableImage as error:
        raise UploadError(
            f"This file cannot be read as an image: {error.reason}. "
            "Use a JPEG, PNG, WebP, BMP, TIFF or GIF."
        ) from error
