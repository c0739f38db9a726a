"""Images in a folder: flat, nested, or one sub-folder per class."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from imsvd.datasets.decoding import decode_image, read_image_size
from imsvd.datasets.source import ImageSource, hash_listing
from imsvd.errors import InputError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


class ImageFolderSource(ImageSource):
    """Every image below `root`, each folder sorted by name.

    The first-level sub-folders are the classes if there are at least two of them and every image
    lies below one; otherwise the images are unlabelled. Hidden entries and `__MACOSX` are passed
    over. `classes`, where given, fixes the numbering, so that a test folder that lacks a class
    still agrees with its training folder.
    """

    def __init__(self, root: str | Path, classes: Sequence[str] | None = None) -> None:
        self.root = Path(root)
        require_folder(self.root)
        names = list(_image_paths(os.fspath(self.root), "", set()))
        if not names:
            looked_for = ", ".join(extension[1:] for extension in EXTENSIONS)
            raise InputError(f"{self.root} holds no images (looked for {looked_for})")
        self._names = _PackedNames(names)
        self._label(names, classes)

    def _label(self, names: list[str], classes: Sequence[str] | None) -> None:
        if not all("/" in name for name in names):
            return
        owners = [name.partition("/")[0] for name in names]
        found = sorted(set(owners))
        if classes is None and len(found) < 2:
            return
        names_by_label = tuple(map(_printable, found if classes is None else classes))
        numbers = {name: number for number, name in enumerate(names_by_label)}
        unknown = [name for name in map(_printable, found) if name not in numbers]
        if len(unknown) == len(found):
            return  # sub-folders of another kind, such as test/images/
        if unknown:
            raise InputError(
                f"{self.root} has a class '{unknown[0]}' that the training images lack"
            )
        self.classes = names_by_label
        self.labels = torch.tensor([numbers[_printable(owner)] for owner in owners])

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> Path:
        """The file of one image."""
        self.require_index(index)
        return self.root / self._names[index]

    def read(self, index: int) -> Tensor:
        """The picture, uint8 (3, height, width) RGB."""
        return decode_image(self.path(index), self.identity(index))

    def size(self, index: int) -> tuple[int, int]:
        """(height, width), from the file's header."""
        return read_image_size(self.path(index), self.identity(index))

    def identity(self, index: int) -> str:
        """Path relative to the root, with forward slashes."""
        self.require_index(index)
        return _printable(self._names[index])

    def fingerprint(self) -> str:
        """Hash of relative paths and classes; moving the whole folder does not change it."""
        return hash_listing([self._names.blob, *(name.encode() for name in self.classes)])


class _PackedNames:
    """Millions of paths as one byte string, which workers receive without a million objects."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.blob = b"\0".join(encoded)  # no file name contains NUL
        self._ends = np.cumsum([len(name) + 1 for name in encoded])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self.blob[start : int(self._ends[index]) - 1])


def _image_paths(folder: str, prefix: str, visited: set[tuple[int, int]]) -> Iterator[str]:
    """Paths below `folder`, relative and with forward slashes; each real folder only once."""
    try:
        status = os.stat(folder)  # noqa: PTH116 - strings: this runs once per entry
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be read ({error.strerror})") from error
    if (status.st_dev, status.st_ino) in visited:
        return  # a symbolic link led back here
    visited.add((status.st_dev, status.st_ino))
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        if entry.is_dir():
            yield from _image_paths(entry.path, f"{prefix}{entry.name}/", visited)
        elif entry.name.lower().endswith(EXTENSIONS) and _is_file_or_dangling(entry):
            yield prefix + entry.name


def _is_file_or_dangling(entry: os.DirEntry[str]) -> bool:
    # A dangling link is listed, so that it is reported as a bad image rather than lost in
    # silence. Pipes and devices are not: opening one could wait for ever.
    return entry.is_file() or (entry.is_symlink() and not Path(entry.path).exists())


def require_folder(root: Path) -> None:
    """Raise `InputError` unless there is such a folder."""
    try:
        exists = root.exists()
    except OSError as error:  # a name too long, a parent that may not be entered
        raise InputError(f"the folder {root} cannot be opened ({error.strerror})") from error
    if not exists:
        raise InputError(f"there is no folder {root}")
    if not root.is_dir():
        raise InputError(f"{root} is a file; give the folder that holds the images")


def _printable(name: str) -> str:
    """The name with undecodable bytes spelt out, safe to print and to write as UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
