"""Where images come from: folders, archives, tables, lists, named datasets, drawn `shapes`."""

from imsvd.datasets.drawn.shapes import ShapesSource
from imsvd.datasets.encoded import EncodedSource
from imsvd.datasets.folder import ImageFolderSource
from imsvd.datasets.memory import load_into_memory, small_image_size
from imsvd.datasets.opening import open_source
from imsvd.datasets.quarantine import BadImage, Quarantine, read_or_replace
from imsvd.datasets.source import ImageSource, UnreadableImage
from imsvd.datasets.subset import Subset

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
