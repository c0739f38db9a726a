"""Places205 as it is distributed: two lists of "path label" lines, and a tree of images.

    trainvalsplit_places205/train_places205.csv         a/abbey/gsun_00a4.jpg 0
    trainvalsplit_places205/val_places205.csv
    data/vision/torralba/deeplearning/images256/a/abbey/gsun_00a4.jpg

The lists may also lie in the folder itself, and the images in it or in images256/. Everything is
checked when it is opened; only whether an image can be decoded shows when it is read.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from imsvd.datasets.encoded import EncodedSource, read_file
from imsvd.datasets.folder import require_folder
from imsvd.datasets.names import PackedNames, printable
from imsvd.datasets.source import hash_listing
from imsvd.errors import InputError

NUM_CLASSES = 205
_LIST_FOLDERS = ("", "trainvalsplit_places205")
_IMAGE_FOLDERS = ("", "images256", "data/vision/torralba/deeplearning/images256")
_LINE = re.compile(r"(?P<path>.+?)[\s,]+(?P<label>[+-]?\d+)")


class Places205Source(EncodedSource):
    """The images of one list, in its order."""

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int], classes: int):
        self.root = root
        self._names = PackedNames.pack(names)
        self.labels = torch.tensor(labels)
        self.classes = tuple(map(str, range(classes)))

    def __len__(self) -> int:
        return len(self._names)

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file."""
        identity = self.identity(index)
        return read_file(self.root / self._names[index], identity)

    def identity(self, index: int) -> str:
        """The path as it is listed."""
        self.require_index(index)
        return printable(self._names[index])

    def fingerprint(self) -> str:
        """Hash of paths and labels."""
        assert self.labels is not None
        return hash_listing([self._names.blob, self.labels.numpy().tobytes()])


class Places205(NamedTuple):
    """Both parts; the official test images have no labels, so that the second is `val`."""

    train: Places205Source
    test: Places205Source


class _Listed(NamedTuple):
    path: Path
    names: list[str]
    labels: list[int]


def open_places205(root: str | Path) -> Places205:
    """Open the folder that Places205's archives were unpacked in.

    Raises:
        InputError: one sentence about the first thing that is not as it should be.
    """
    base = Path(root).expanduser()
    require_folder(base)
    train, test = (_read_list(_find_list(base, split)) for split in ("train", "val"))
    images = _find_images(base, train)
    for part in (train, test):
        _require_images(images, part)
    classes = max(train.labels) + 1
    return Places205(
        Places205Source(images, train.names, train.labels, classes),
        Places205Source(images, test.names, test.labels, classes),
    )


def _find_list(base: Path, split: str) -> Path:
    name = f"{split}_places205.csv"
    for folder in _LIST_FOLDERS:
        if (base / folder / name).is_file():
            return base / folder / name
    raise InputError(
        f"{base} is not in the layout of Places205: it holds no {name}; "
        "give the folder that its images and its trainvalsplit_places205 were unpacked in."
    )


def _read_list(path: Path) -> _Listed:
    names: list[str] = []
    labels: list[int] = []
    for number, raw in enumerate(path.read_bytes().splitlines(), start=1):
        line = os.fsdecode(raw).strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\0" in line:
            raise InputError(f"{path}, line {number}, is not a path and a label: {line[:80]!r}.")
        if not 0 <= int(match["label"]) < NUM_CLASSES:
            raise InputError(
                f"{path}, line {number}, has the label {match['label']}; "
                f"labels are 0 to {NUM_CLASSES - 1}."
            )
        names.append(match["path"])
        labels.append(int(match["label"]))
    if not names:
        raise InputError(f"{path} lists no images; take it from trainvalsplit_places205.tar.gz.")
    return _Listed(path, names, labels)


def _find_images(base: Path, train: _Listed) -> Path:
    """The folder that paths start at: the first in which the first listed image is."""
    candidates = [base / folder for folder in _IMAGE_FOLDERS]
    found = next((folder for folder in candidates if (folder / train.names[0]).is_file()), None)
    return found or next(folder for folder in reversed(candidates) if folder.is_dir())


def _require_images(images: Path, part: _Listed) -> None:
    """Refuse a list that names an absent image; folders are listed whole, for there are millions."""
    contents: dict[str, set[str]] = {}
    for name in part.names:
        folder, _, file = name.rpartition("/")
        if folder not in contents:
            contents[folder] = _entries(images / folder)
        if file not in contents[folder]:
            raise InputError(
                f"{part.path} lists {printable(name)}, which is not in {images}; "
                "add the image or take it off the list."
            )


def _entries(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - names only, of millions of files
    except OSError:
        return set()
