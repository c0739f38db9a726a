"""Part of a source, with its labels and attributes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from imsvd.datasets.source import ImageSource, hash_listing


class Subset(ImageSource):
    """The images of `source` at `indices`, in that order."""

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
        """The picture, uint8 (3, height, width) RGB; raises `UnreadableImage`."""
        self.require_index(index)
        return self.source.read(self.indices[index])

    def read_many(self, indices: Sequence[int]) -> list[Tensor]:
        """`read` for several indices."""
        return self.source.read_many([self.indices[index] for index in indices])

    def identity(self, index: int) -> str:
        """The name that the whole source gives the picture."""
        return self.source.identity(self.indices[index])

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of the picture."""
        return self.source.size(self.indices[index])

    def fingerprint(self) -> str:
        """A short hash of the whole source and of the choice."""
        return hash_listing([self.source.fingerprint().encode(), str(self.indices).encode()])
