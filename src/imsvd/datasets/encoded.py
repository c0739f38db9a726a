"""Sources that keep pictures as the bytes of image files, wherever those bytes lie."""

import os
import stat
from abc import abstractmethod
from pathlib import Path

from torch import Tensor

from imsvd.datasets.decoding import decode_image, read_image_size
from imsvd.datasets.source import ImageSource, UnreadableImage

# Far above any photograph. An archive may declare anything, and what it declares is allocated.
MAX_FILE_BYTES = 256 * 1024**2
TOO_LARGE = f"a file of more than {MAX_FILE_BYTES // 1024**2} MiB"

_REASONS: dict[type[BaseException], str] = {
    FileNotFoundError: "missing file",
    NotADirectoryError: "missing file",
    IsADirectoryError: "a folder, not a file",
    PermissionError: "no permission to read it",
    MemoryError: "not enough memory to read it",
    ValueError: "not a possible file name",
}


class EncodedSource(ImageSource):
    """A source that can also give a picture as it is stored, for decoders that want part of it."""

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """The bytes of the image file, not yet known to be one; raises `UnreadableImage`."""

    def read(self, index: int) -> Tensor:
        """The picture, uint8 (3, height, width) RGB."""
        return decode_image(self.encoded(index), self.identity(index))

    def size(self, index: int) -> tuple[int, int]:
        """(height, width), from the file's header."""
        return read_image_size(self.encoded(index), self.identity(index))


def read_file(path: Path, identity: str) -> bytes:
    """All bytes of a file of plausible size; raises `UnreadableImage`."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(status.st_mode):
            # Opening a pipe could wait for ever.
            raise UnreadableImage(identity, "not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise UnreadableImage(identity, TOO_LARGE)
        return path.read_bytes()
    except (OSError, MemoryError, ValueError) as error:
        reason = _REASONS.get(type(error)) or os.strerror(getattr(error, "errno", None) or 5)
        raise UnreadableImage(identity, reason) from error
