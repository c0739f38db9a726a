"""Images as files on disk: in a folder, or listed in a text file."""

import os
from collections.abc import Sequence
from pathlib import Path

from imsvd.datasets.decoding import read_image_size
from imsvd.datasets.layouts import (
    NoImagesError,
    Split,
    is_hidden,
    is_image_name,
    label_by_folder,
    label_by_value,
    open_split,
    parts_of_files,
)
from imsvd.datasets.sources import ImageSource, PathSource
from imsvd.errors import InputError


class ImageFolderSource(PathSource):
    """Every image below `root`, each folder sorted by name.

    The first-level folders are the classes if there are at least two of them and every image lies
    in one; otherwise the images are unlabeled. Hidden entries and `__MACOSX` are skipped.
    `classes`, if given, fixes the numbering, so that a test folder that lacks a class agrees with
    its training folder.
    """

    def __init__(self, root: str | Path, classes: Sequence[str] | None = None) -> None:
        require_folder(Path(root))
        names: list[str] = []
        _list_images(os.fspath(Path(root).absolute()), "", names, set())
        if not names:
            raise NoImagesError(root)
        super().__init__(Path(root), names, *label_by_folder(root, names, classes))

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width), from the file's header."""
        return read_image_size(self.path(index), self.identity(index))


class PathListSource(PathSource):
    """The images listed in a text file, in its order; relative paths start at the file's folder.

    A label may follow after a tab or a space. Blank lines and lines beginning with # are skipped.
    Missing files are noticed when they are read.
    """

    def __init__(self, path: Path, classes: Sequence[str] | None = None) -> None:
        names, values = zip(*_parse(path), strict=True)
        super().__init__(path.parent, names, *label_by_value(path, values, None, classes))


def open_list(files: Sequence[Path], split: Split) -> ImageSource:
    """Open a list; test.txt (or val.txt) beside train.txt lists the test images."""
    if len(files) > 1:
        raise InputError(f"{files[0]} is one of {len(files)} lists; join them into one.")
    return open_split(
        split,
        parts_of_files(files),
        lambda part, classes: PathListSource(part[0], classes),
        f"{files[0]} has no test images: name the lists train.txt and test.txt (or val.txt), put "
        "them into one folder, and give train.txt.",
    )


def require_folder(root: Path) -> None:
    """Raise `InputError` unless the folder exists."""
    try:
        exists = root.exists()
    except OSError as error:  # a name too long, or a parent without permission
        raise InputError(f"the folder {root} cannot be opened ({error.strerror}).") from error
    if not exists:
        raise InputError(f"there is no folder {root}.")
    if not root.is_dir():
        raise InputError(f"{root} is a file; give the folder that holds the images.")


def _list_images(folder: str, prefix: str, names: list[str], visited: set[tuple[int, int]]) -> None:
    """Append the images below `folder` to `names`, sorted; enter each real folder only once."""
    try:
        status = os.stat(folder)  # noqa: PTH116 - strings are faster, and folders can be many
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be read ({error.strerror}).") from error
    if (status.st_dev, status.st_ino) in visited:
        return  # a symbolic link led back here
    visited.add((status.st_dev, status.st_ino))
    for entry in entries:
        if is_hidden(entry.name):
            continue
        if _is_folder(entry):
            _list_images(entry.path, f"{prefix}{entry.name}/", names, visited)
        elif is_image_name(entry.name) and _is_file_or_dangling(entry):
            names.append(prefix + entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or into a folder without permission
        return False


def _is_file_or_dangling(entry: os.DirEntry[str]) -> bool:
    # A dangling link is listed, so that it is reported as a bad image instead of silently skipped.
    # Pipes and devices are not: opening one could block forever.
    try:
        return entry.is_file() or (entry.is_symlink() and not Path(entry.path).exists())
    except OSError:  # as above; it becomes a bad image when it is read
        return True


def _parse(path: Path) -> list[tuple[str, str | None]]:
    """Return the (path, label) pairs of a list."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror or error}).") from error
    entries: list[tuple[str, str | None]] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        line = os.fsdecode(raw.replace(b"\0", b"\\0")).strip()
        if not line or line.startswith("#"):
            continue
        name, label = _split_line(line)
        if entries and (label is None) != (entries[0][1] is None):
            raise InputError(
                f"{path} gives a label to some images only; line {number} differs from the first."
            )
        entries.append((name, label))
    if not entries:
        raise InputError(f"{path} lists no images; write one path per line.")
    return entries


def _split_line(line: str) -> tuple[str, str | None]:
    """Split a line into path and label; paths may contain spaces."""
    if "\t" in line:
        name, _, label = line.partition("\t")
        return name.strip(), label.strip()
    name, space, label = line.rpartition(" ")
    if space and not is_image_name(line) and is_image_name(name.rstrip()):
        return name.rstrip(), label
    return line, None
