"""From images to the rows of an index: read once, hashed, encoded."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.datasets import (
    BadImage,
    EncodedSource,
    ImageSource,
    UnreadableImage,
    open_source,
    small_image_size,
)
from imsvd.datasets.decoding import decode_image
from imsvd.datasets.layouts import NoTestImagesError, is_image_name
from imsvd.datasets.opening import absolute
from imsvd.datasets.reading import load_batches
from imsvd.datasets.sources import PathSource
from imsvd.encoder import Encoder, encoder_key, encoding_device, open_encoder
from imsvd.errors import InputError
from imsvd.evaluation.features import center_crop
from imsvd.index.columns import Bytes, Numbers, level_of
from imsvd.index.known import ContentKey, KnownCodes, content_at, content_key
from imsvd.index.segments import HASH_BYTES, Rows
from imsvd.index.storage import Root
from imsvd.information import codes, max_probabilities, soft_discretize
from imsvd.processors import usable_processors

SPLITS = ("train", "test", "all")


class Part(NamedTuple):
    """One split of some data."""

    source: ImageSource
    root: Root

    def place(self, index: int, roots: Sequence[Root], own: int) -> tuple[int, bytes]:
        """Return where the name of an image begins, as a number from 1 on, and the name.

        A file below several of the `roots` belongs to the nearest of them. `own` is the number of
        this part's root.
        """
        if not isinstance(self.source, PathSource):
            return own, self.source.identity(index).encode()
        path = self.source.path(index)
        return place_of(path, roots) or (own, os.fsencode(os.path.relpath(path, self.root.folder)))


def place_of(path: str | Path, roots: Sequence[Root]) -> tuple[int, bytes] | None:
    """Return the nearest root above a file, as a number from 1 on, and the file's name below it."""
    whole = os.path.abspath(path)  # noqa: PTH100 - resolving links would change names
    best = 0
    for number, root in enumerate(roots, start=1):
        if root.folder and whole.startswith(root.folder.rstrip("/") + "/"):
            best = number if not best or len(root.folder) > len(roots[best - 1].folder) else best
    return (best, os.fsencode(os.path.relpath(whole, roots[best - 1].folder))) if best else None


def open_parts(data: str | Path, split: str = "all") -> list[Part]:
    """Open the splits of some data; "all" takes the test images too where there are any."""
    if split not in SPLITS:
        raise InputError(f"there is no --split {split}; choose {', '.join(SPLITS)}.")
    if is_image_name(str(data)) and Path(data).is_file():
        path = Path(data).absolute()
        return [_part(PathSource(path.parent, [path.name]), str(path.parent), "")]
    opened = []
    if split != "test":
        opened.append(_part(open_source(data, "train"), absolute(data), "train"))
    if split != "train":
        try:
            opened.append(_part(open_source(data, "test"), absolute(data), "test"))
        except NoTestImagesError:
            if split == "test":
                raise
            # Without a test split, all images are one set, which is not for training only.
            opened = [
                Part(part.source, part.root.model_copy(update={"split": ""})) for part in opened
            ]
    return opened


def _part(source: ImageSource, data: str, split: str) -> Part:
    folder = ""
    if isinstance(source, PathSource):
        folder = os.path.abspath(source.root)  # noqa: PTH100 - resolving links would change names
    return Part(source, Root(data=data, split=split, folder=folder))


class Encoded(NamedTuple):
    """What an encoder makes of n images."""

    codes: Numbers
    """(n, variables)."""
    confidences: NDArray[np.float32]
    """Probability of each of these units, (n, variables)."""
    features: NDArray[np.float32]
    """(n, width)."""


class Coder:
    """An encoder with discrete variables, on the device that encodes.

    Args:
        run: a run folder, or an encoder as for `open_encoder`.
    """

    def __init__(self, run: str | Path) -> None:
        self.run = absolute(run)
        self.encoder: Encoder = open_encoder(run).to(encoding_device())
        self.units = self.encoder.description.units
        if not self.units:
            raise InputError(
                f"{run} has no codes: encoders trained with {self.encoder.description.method!r} have no "
                "discrete variables; give them some with `imsvd discretize`."
            )
        self.key = encoder_key(self.encoder.description, self.encoder.state_dict())

    @property
    def size(self) -> int:
        """Side of the images that it takes."""
        return self.encoder.description.size

    def encode(self, crops: Tensor) -> Encoded:
        """Encode images (n, 3, size, size) uint8."""
        encoder, units = self.encoder, self.units
        with torch.no_grad():
            normalized = encoder.normalize(crops)
            features = encoder.backbone(normalized.contiguous(memory_format=torch.channels_last))
            q = soft_discretize(encoder.projector(features), units)
            dtype = np.uint8 if max(units) <= 256 else np.uint16
            return Encoded(
                codes(q, units).cpu().numpy().astype(dtype),
                max_probabilities(q, units).float().cpu().numpy(),
                features.float().cpu().numpy(),
            )

    def encode_file(self, path: Path) -> Encoded:
        """Encode one image file."""
        try:
            image = decode_image(path, str(path))
        except UnreadableImage as error:
            raise InputError(f"{path} cannot be used: {error.reason}.") from error
        return self.encode(center_crop(image, self.size)[None])


class _ReadImages(NamedTuple):
    """The readable ones of some images."""

    crops: Tensor
    """Of the images whose codes are not known."""
    positions: list[int]
    keys: list[ContentKey]
    modified: list[int]
    known: list[int]
    """Rows of known codes; -1 for images that must be encoded."""
    bad: list[BadImage]


class Request(NamedTuple):
    """Images of a part to encode.

    Attributes:
        part: where they are.
        places: root and name of every image of the part.
        facets: values of every image of the part by facet.
        batches: positions of the images; each batch is encoded at once.
    """

    part: Part
    places: Sequence[tuple[int, bytes]]
    facets: Mapping[str, NDArray[np.uint32]]
    batches: Sequence[Sequence[int]]


def read_rows(
    coder: Coder, request: Request, keep_features: bool, known: KnownCodes | None = None
) -> Iterator[tuple[Rows, list[BadImage]]]:
    """Yield for every batch its rows, without images that cannot be read, and those images.

    Images with `known` codes are not encoded, unless features are to be kept.
    """
    source, batches = request.part.source, request.batches
    known = None if keep_features else known
    in_process = len(batches) < 2 or small_image_size(source) is not None
    workers = 0 if in_process else max(1, usable_processors() // 2)
    read = functools.partial(_read, source, coder.size, known)
    for images in load_batches(read, batches, workers):
        codes, levels, features = _codes(coder, images, known)
        places = [request.places[position] for position in images.positions]
        facets = {name: values[images.positions] for name, values in request.facets.items()}
        hashes = b"".join(key.hash for key in images.keys)
        rows = Rows(
            codes,
            levels,
            np.frombuffer(hashes, dtype=np.uint8).reshape(-1, HASH_BYTES),
            np.array([key.size for key in images.keys], dtype=np.uint32),
            np.array(images.modified, dtype=np.uint64),
            [name for _, name in places],
            {**facets, "root": np.array([root for root, _ in places], dtype=np.uint32)},
            features.astype(np.float16) if keep_features else None,
        )
        yield rows, images.bad


def _codes(
    coder: Coder, images: _ReadImages, known: KnownCodes | None
) -> tuple[Numbers, Bytes, NDArray[np.float32]]:
    """Return codes and confidence levels of all images, and features of those that were encoded."""
    rows = np.array(images.known, dtype=np.int64)
    if known is None or (rows < 0).all():
        encoded = coder.encode(images.crops)
        return encoded.codes, level_of(encoded.confidences), encoded.features
    codes, levels = known.codes[rows], known.levels[rows]
    features = np.empty((0, coder.encoder.num_features), dtype=np.float32)
    if len(images.crops):
        encoded = coder.encode(images.crops)
        codes[rows < 0], levels[rows < 0] = encoded.codes, level_of(encoded.confidences)
        features = encoded.features
    return codes, levels, features


def _read(
    source: ImageSource, size: int, known: KnownCodes | None, positions: Sequence[int]
) -> _ReadImages:
    found = _ReadImages(torch.empty(0, 3, size, size, dtype=torch.uint8), [], [], [], [], [])
    drawn: Mapping[int, Tensor] = {}
    if not isinstance(source, EncodedSource):
        drawn = dict(zip(positions, source.read_many(positions), strict=True))
    crops = []
    for position in positions:
        try:
            # Before reading: of an image that changes meanwhile, `imsvd add` must see a later time.
            modified = modified_at(source.path(position)) if isinstance(source, PathSource) else 0
            image = drawn.get(position)
            content = content_at(source, position) if image is None else image.numpy().tobytes()
            key = content_key(source, content)
            row = -1 if known is None else known.row(key)
            if row < 0:
                if image is None:
                    image = decode_image(content, source.identity(position))
                crops.append(center_crop(image, size))
        except UnreadableImage as error:
            found.bad.append(BadImage(position, error.identity, error.reason))
            continue
        found.positions.append(position)
        found.keys.append(key)
        found.modified.append(modified)
        found.known.append(row)
    return found._replace(crops=torch.stack(crops)) if crops else found


def modified_at(path: str | Path) -> int:
    """Return when a file was changed last, in nanoseconds since 1970; 0 if it does not exist."""
    try:
        return max(0, os.stat(path).st_mtime_ns)  # noqa: PTH116 - paths may be strings
    except OSError:
        return 0


def facet_values(
    source: ImageSource, known: Mapping[str, Sequence[str]]
) -> tuple[dict[str, NDArray[np.uint32]], dict[str, tuple[str, ...]]]:
    """Return labels and attributes as facets, and `known` names of values with new ones added.

    A value is the position of its name, from 1 on; 0 is unknown.
    """
    given = dict(source.attributes)
    names = dict(source.attribute_values)
    if source.labels is not None and source.classes:
        given["label"], names["label"] = source.labels, source.classes
    values: dict[str, NDArray[np.uint32]] = {}
    listed = {name: tuple(entries) for name, entries in known.items()}
    for facet, numbers in given.items():
        own = names.get(facet) or tuple(map(str, range(int(numbers.max()) + 1)))
        before = listed.get(facet, ())
        listed[facet] = (*before, *(name for name in own if name not in before))
        places = np.array([listed[facet].index(name) + 1 for name in own], dtype=np.uint32)
        known_numbers = numbers.numpy()
        values[facet] = np.where(
            known_numbers >= 0, places[np.maximum(known_numbers, 0)], 0
        ).astype(np.uint32)
    return values, listed
