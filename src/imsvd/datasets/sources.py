"""The contract of every collection of images, and its basic kinds."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from imsvd.datasets.decoding import decode_image, read_file, read_image_size


class ImageSource(ABC):
    """A finite, indexable collection of images that is cheap to send to worker processes.

    Attributes:
        labels: class of every image, (n,) int64; None if unlabeled.
        classes: name of every class, by label; empty if unlabeled.
        attributes: further known factors, (n,) int64 each.
        attribute_values: names of the values of every attribute.
    """

    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    attributes: Mapping[str, Tensor] = {}
    attribute_values: Mapping[str, tuple[str, ...]] = {}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> Tensor:
        """Return the image, uint8 (3, height, width) RGB, or raise `UnreadableImage`."""

    @abstractmethod
    def identity(self, index: int) -> str:
        """Return a name by which a person can find the image, such as its path below the root."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short hash of names, labels and count; a resumed run uses it to detect changes."""

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width); override it if decoding is not needed to know."""
        height, width = self.read(index).shape[-2:]
        return height, width

    def read_many(self, indices: Sequence[int]) -> list[Tensor]:
        """Read several images; override it if a batch costs less than its images one by one."""
        return [self.read(index) for index in indices]

    def require_index(self, index: int) -> None:
        """Raise IndexError unless 0 <= index < n; negative indices are always a mistake."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of a source of {len(self)}")

    def hash_with_labels(self, *parts: bytes) -> str:
        """Hash `parts`, labels and classes, for fingerprints."""
        labels = b"" if self.labels is None else self.labels.numpy().tobytes()
        return hash_listing([*parts, labels, *(name.encode() for name in self.classes)])


class EncodedSource(ImageSource):
    """A source that can also return the encoded file, for decoders that need only part of it."""

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """Return the bytes of the image file, unverified, or raise `UnreadableImage`."""

    def read(self, index: int) -> Tensor:
        """Return the image, uint8 (3, height, width) RGB."""
        return decode_image(self.encoded(index), self.identity(index))

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width), from the file's header."""
        return read_image_size(self.encoded(index), self.identity(index))


class PathSource(EncodedSource):
    """Image files at paths relative to a root."""

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        labels: Tensor | None = None,
        classes: tuple[str, ...] = (),
    ) -> None:
        self.root, self.labels, self.classes = root, labels, classes
        self._names = PackedNames(names)

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> Path:
        """Return the path of one image."""
        self.require_index(index)
        return self.root / self._names[index]

    def encoded(self, index: int) -> bytes:
        """Return the bytes of the image file."""
        return read_file(self.path(index), self.identity(index))

    def identity(self, index: int) -> str:
        """Return the path relative to the root, with forward slashes."""
        self.require_index(index)
        return printable(self._names[index])

    def fingerprint(self) -> str:
        """Return a hash of paths, labels and classes; moving the files does not change it."""
        return self.hash_with_labels(self._names.blob)


class ArraySource(ImageSource):
    """Images in memory, uint8 (n, 3, height, width), under a name such as "cifar10/train"."""

    def __init__(
        self,
        name: str,
        images: Tensor,
        labels: Tensor | None = None,
        classes: tuple[str, ...] = (),
    ) -> None:
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise ValueError(f"images must be uint8 (n, 3, height, width), not {images.shape}")
        self.name, self.images, self.labels, self.classes = name, images, labels, classes

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Tensor:
        """Return the image, uint8 (3, height, width) RGB, without copying."""
        self.require_index(index)
        return self.images[index]

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width), the same for all."""
        self.require_index(index)
        return self.images.shape[2], self.images.shape[3]

    def identity(self, index: int) -> str:
        """Return the name of the array and the number of the image."""
        self.require_index(index)
        return f"{self.name}/{index}"

    def fingerprint(self) -> str:
        """Return a hash of name, shape, labels and classes."""
        return self.hash_with_labels(self.name.encode(), repr(tuple(self.images.shape)).encode())


class DecodedImages(ImageSource):
    """Some images of a source, decoded, from which views are made without decoding them again."""

    def __init__(self, images: Mapping[int, Tensor]) -> None:
        self._images = images

    def __len__(self) -> int:
        return max(self._images) + 1  # indices are those of the whole source

    def read(self, index: int) -> Tensor:
        """Return the image, uint8 (3, height, width) RGB."""
        return self._images[index]

    def identity(self, index: int) -> str:
        """Return the number of the image."""
        return str(index)

    def fingerprint(self) -> str:
        """Return nothing: the images are never trained on by themselves."""
        return ""


class Subset(ImageSource):
    """The images of `source` at `indices`, in that order, with their labels and attributes."""

    def __init__(self, source: ImageSource, indices: Sequence[int]) -> None:
        self.source, self.indices = source, list(indices)
        chosen = torch.tensor(self.indices, dtype=torch.int64)
        self.labels = None if source.labels is None else source.labels[chosen]
        self.classes = source.classes
        self.attributes = {name: values[chosen] for name, values in source.attributes.items()}
        self.attribute_values = source.attribute_values

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> Tensor:
        """Return the image, uint8 (3, height, width) RGB."""
        self.require_index(index)
        return self.source.read(self.indices[index])

    def read_many(self, indices: Sequence[int]) -> list[Tensor]:
        """Read several images."""
        return self.source.read_many([self.indices[index] for index in indices])

    def identity(self, index: int) -> str:
        """Return the name of the image in the whole source."""
        return self.source.identity(self.indices[index])

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width)."""
        return self.source.size(self.indices[index])

    def fingerprint(self) -> str:
        """Return a hash of the whole source and the selection."""
        return hash_listing([self.source.fingerprint().encode(), str(self.indices).encode()])


class PackedNames:
    """Millions of names as one byte string, which is pickled without a million objects."""

    def __init__(self, names: Sequence[str]) -> None:
        self.blob = b"\0".join(os.fsencode(name) for name in names)
        breaks = np.flatnonzero(np.frombuffer(self.blob, np.uint8) == 0)  # no name contains NUL
        self._ends = np.append(breaks, len(self.blob))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) + 1 if index else 0
        return os.fsdecode(self.blob[start : int(self._ends[index])])


def printable(name: str) -> str:
    """Return the name with undecodable bytes escaped, safe to print and to write as UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def hash_listing(parts: Iterable[bytes | memoryview]) -> str:
    """Return sixteen hexadecimal digits for a sequence of byte strings and their boundaries."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]
