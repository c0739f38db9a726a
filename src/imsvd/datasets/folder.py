"""Images in a folder: flat, nested, or one sub-folder per class."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imsvd.datasets.decoding import read_image_size
from imsvd.datasets.encoded import EncodedSource, read_file
from imsvd.datasets.index_cache import MIN_ENTRIES, as_bytes, load_listing, save_listing
from imsvd.datasets.labels import label_by_folder
from imsvd.datasets.names import (
    EXTENSIONS,
    NoImagesError,
    PackedNames,
    is_hidden,
    is_image_name,
    printable,
)
from imsvd.datasets.source import hash_listing
from imsvd.errors import InputError

# File systems stamp changes with a coarse clock: a folder that changed just before it was listed
# may change again without its stamp telling.
_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_000_000_000


class ImageFolderSource(EncodedSource):
    """Every image below `root`, each folder sorted by name.

    The first-level sub-folders are the classes if there are at least two of them and every image
    lies below one; otherwise the images are unlabeled. Hidden entries and `__MACOSX` are passed
    over. `classes`, where given, fixes the numbering, so that a test folder that lacks a class
    still agrees with its training folder. The listing of a large folder is kept between runs.
    """

    def __init__(self, root: str | Path, classes: Sequence[str] | None = None) -> None:
        self.root = Path(root)
        require_folder(self.root)
        self._names = _list_images(self.root)
        self.labels, self.classes = label_by_folder(self.root, self._names.unpack(), classes)

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> Path:
        """The file of one image."""
        self.require_index(index)
        return self.root / self._names[index]

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file."""
        return read_file(self.path(index), self.identity(index))

    def size(self, index: int) -> tuple[int, int]:
        """(height, width), from the file's header."""
        return read_image_size(self.path(index), self.identity(index))

    def identity(self, index: int) -> str:
        """Path relative to the root, with forward slashes."""
        self.require_index(index)
        return printable(self._names[index])

    def fingerprint(self) -> str:
        """Hash of relative paths and classes; moving the whole folder does not change it."""
        return hash_listing([self._names.blob, *(name.encode() for name in self.classes)])


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


def _list_images(root: Path) -> PackedNames:
    """The names of all images, from the cache unless a folder has changed."""
    base = os.fspath(root.absolute())
    key = f"folder {' '.join(EXTENSIONS)} {base}"
    cached = load_listing(key)
    if cached is not None:
        folders = os.fsdecode(cached["folders"].tobytes()).split("\0")
        if np.array_equal(_stamps(base, folders), cached["stamps"]):
            return PackedNames(cached["names"].tobytes())
    walk = _Walk(base)
    if not walk.names:
        raise NoImagesError(root)
    names = PackedNames.pack(walk.names)
    if len(names) >= MIN_ENTRIES and walk.settled:
        save_listing(
            key,
            {
                "names": as_bytes(names.blob),
                "folders": as_bytes(PackedNames.pack(walk.folders).blob),
                "stamps": np.array(walk.stamps),
            },
        )
    return names


def _stamp(status: os.stat_result) -> tuple[int, int]:
    """What changes whenever a folder's entries do: the time of the change, and which folder."""
    return status.st_mtime_ns, status.st_ino % 2**63


def _stamps(base: str, folders: Sequence[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The stamps of folders, (n, 2); of none, (0, 2), if one of them cannot be seen."""
    try:
        found = [_stamp(os.stat(base + name)) for name in folders]  # noqa: PTH116 - many
    except (OSError, ValueError):
        found = []
    return np.array(found, dtype=np.int64).reshape(-1, 2)


class _Walk:
    """All images below a folder, sorted, each real folder entered only once.

    Attributes:
        names: paths of the images, relative to `base`, with forward slashes.
        folders: what to append to `base` for every folder entered.
        stamps: the stamp each had before it was listed.
        settled: whether any later change will show in the stamps.
    """

    def __init__(self, base: str) -> None:
        self.names: list[str] = []
        self.folders: list[str] = []
        self.stamps: list[tuple[int, int]] = []
        self.settled = True
        self._visited: set[tuple[int, int]] = set()
        self._enter(base, "")

    def _enter(self, folder: str, prefix: str) -> None:
        try:
            now = time.time_ns()
            status = os.stat(folder)  # noqa: PTH116 - strings: this runs once per entry
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            raise InputError(f"the folder {folder} cannot be read ({error.strerror})") from error
        if (status.st_dev, status.st_ino) in self._visited:
            return  # a symbolic link led back here
        self._visited.add((status.st_dev, status.st_ino))
        self.folders.append(f"/{prefix}")
        self.stamps.append(_stamp(status))
        tick = _TICK_NS if status.st_mtime_ns % 1_000_000 else _COARSE_TICK_NS
        self.settled &= status.st_mtime_ns < now - tick
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if _is_folder(entry):
                self._enter(entry.path, f"{prefix}{entry.name}/")
            elif is_image_name(entry.name) and _is_file_or_dangling(entry):
                self.names.append(prefix + entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or into a folder of somebody else
        return False


def _is_file_or_dangling(entry: os.DirEntry[str]) -> bool:
    # A dangling link is listed, so that it is reported as a bad image rather than lost in
    # silence. Pipes and devices are not: opening one could wait for ever.
    try:
        return entry.is_file() or (entry.is_symlink() and not Path(entry.path).exists())
    except OSError:  # as above; when it is read, it is a bad image too
        return True
