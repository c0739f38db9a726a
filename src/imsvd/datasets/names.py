"""Names of images inside a folder or an archive: which count, in which order, kept compactly."""

import os
from collections.abc import Sequence

import numpy as np

from imsvd.errors import InputError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


class NoImagesError(InputError):
    """A place that can be read but holds no images."""

    def __init__(self, where: object) -> None:
        looked_for = ", ".join(extension[1:] for extension in EXTENSIONS)
        super().__init__(f"{where} holds no images (looked for {looked_for})")


class PackedNames:
    """Millions of names as one byte string, which workers receive without a million objects."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        breaks = np.flatnonzero(np.frombuffer(blob, np.uint8) == 0)  # no file name contains NUL
        self._ends = np.append(breaks, len(blob))

    @classmethod
    def pack(cls, names: Sequence[str]) -> "PackedNames":
        """Pack at least one name."""
        return cls(b"\0".join(os.fsencode(name) for name in names))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) + 1 if index else 0
        return os.fsdecode(self.blob[start : int(self._ends[index])])

    def unpack(self) -> list[str]:
        """All names."""
        return os.fsdecode(self.blob).split("\0")


def is_hidden(name: str) -> bool:
    """Whether an entry of a folder is none of the user's doing, such as .DS_Store."""
    return name.startswith(".") or name == "__MACOSX"


def is_image_name(name: str) -> bool:
    """Whether the name ends as an image's does."""
    return name.lower().endswith(EXTENSIONS)


def member_name(name: str) -> str | None:
    """The name of an archive's member as a relative path; None unless it is to be listed."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    if not parts or not is_image_name(parts[-1]) or any(map(is_hidden, parts)):
        return None
    return "/".join(parts)


def folder_order(name: str) -> list[str]:
    """A sorting key that puts the names of an archive in the order of the unpacked folder."""
    return name.split("/")


def printable(name: str) -> str:
    """The name with undecodable bytes spelled out, safe to print and to write as UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
