"""What every collection of images offers: a length, a picture per index and what is known of it.

Folders, named datasets and the built-in `shapes` implement it here; archives, Parquet files and
lists of paths fit the same five methods, since nothing in it speaks of files.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor


class UnreadableImage(Exception):  # noqa: N818 - it names the thing found, which is quarantined
    """One picture cannot be decoded; `reason` is a short phrase such as "truncated JPEG"."""

    def __init__(self, identity: str, reason: str) -> None:
        super().__init__(identity, reason)  # both as arguments, so that workers can pickle it
        self.identity = identity
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.identity}: {self.reason}"


class ImageSource(ABC):
    """A finite, indexable collection of images, cheap to send to worker processes.

    Attributes:
        labels: class of every image, (n,) int64; None when unlabeled.
        classes: name of every class, by label; empty when unlabeled.
        attributes: further known factors, each (n,) int64; empty unless known.
        attribute_values: for every attribute the names of its values.
    """

    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    attributes: Mapping[str, Tensor] = {}
    attribute_values: Mapping[str, tuple[str, ...]] = {}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> Tensor:
        """The picture, uint8 (3, height, width) RGB; raises `UnreadableImage`."""

    @abstractmethod
    def identity(self, index: int) -> str:
        """A name for the picture that a person can look up, such as its path below the root."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A short hash of names, labels and count, by which a resumed run notices changed data."""

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of the picture; sources that can tell without decoding override it."""
        height, width = self.read(index).shape[-2:]
        return height, width

    def read_many(self, indices: Sequence[int]) -> list[Tensor]:
        """`read` for several indices, for sources where a batch costs less than its pictures."""
        return [self.read(index) for index in indices]

    def require_index(self, index: int) -> None:
        """Raise IndexError unless 0 <= index < n; a negative index is always a caller's slip."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of a source of {len(self)}")


def hash_listing(parts: Iterable[bytes]) -> str:
    """Sixteen hexadecimal digits for a sequence of byte strings, boundaries included."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]
