"""Images that are already in memory as one tensor."""

import torch
from torch import Tensor

from imsvd.datasets.source import ImageSource, hash_listing


class ArraySource(ImageSource):
    """Pictures uint8 (n, 3, height, width) under a name, such as "cifar10/train"."""

    def __init__(
        self,
        name: str,
        images: Tensor,
        labels: Tensor | None = None,
        classes: tuple[str, ...] = (),
    ) -> None:
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise ValueError(f"images must be uint8 (n, 3, height, width), not {images.shape}")
        self.name = name
        self.images = images
        self.labels = labels
        self.classes = classes

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Tensor:
        """The picture, uint8 (3, height, width) RGB, as a view of the whole."""
        self.require_index(index)
        return self.images[index]

    def size(self, index: int) -> tuple[int, int]:
        """(height, width), the same for all."""
        self.require_index(index)
        return self.images.shape[2], self.images.shape[3]

    def identity(self, index: int) -> str:
        """Name of the array and number of the picture."""
        self.require_index(index)
        return f"{self.name}/{index}"

    def fingerprint(self) -> str:
        """Hash of name, shape and labels."""
        labels = b"" if self.labels is None else self.labels.numpy().tobytes()
        return hash_listing([self.name.encode(), repr(tuple(self.images.shape)).encode(), labels])
