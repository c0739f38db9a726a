"""Where images come from: folders, archives, tables, streams, named and drawn datasets."""

from imsvd.datasets.decoding import UnreadableImage
from imsvd.datasets.drawn.shapes import ShapesSource
from imsvd.datasets.folders import ImageFolderSource
from imsvd.datasets.opening import open_source
from imsvd.datasets.reading import (
    BadImage,
    Quarantine,
    load_into_memory,
    read_or_replace,
    small_image_size,
)
from imsvd.datasets.sources import EncodedSource, ImageSource, Subset

__all__ = [
    "BadImage",
    "EncodedSource",
    "ImageFolderSource",
    "ImageSource",
    "Quarantine",
    "ShapesSource",
    "Subset",
    "UnreadableImage",
    "load_into_memory",
    "open_source",
    "read_or_replace",
    "small_image_size",
]
