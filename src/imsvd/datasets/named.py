"""Datasets with a name: CIFAR and STL-10, downloaded once through torchvision, and Places205.

Downloads are kept in the folder named by the environment variable IMSVD_DATA, by default
~/.cache/imsvd. Places205 is read from the folder into which its archives were unpacked.
"""

import contextlib
import fcntl
import os
import pickle
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from imsvd.datasets.folders import require_folder
from imsvd.datasets.layouts import Split
from imsvd.datasets.sources import ArraySource, ImageSource, PathSource, printable
from imsvd.errors import InputError

_PLACES_CLASSES = 205
_PLACES_LISTS = ("", "trainvalsplit_places205")
_PLACES_IMAGES = ("", "images256", "data/vision/torralba/deeplearning/images256")
_PLACES_LINE = re.compile(r"(?P<path>.+?)[\s,]+(?P<label>[+-]?\d+)")


def data_folder() -> Path:
    """Return the folder for downloads and caches: $IMSVD_DATA, otherwise ~/.cache/imsvd."""
    return Path(os.environ.get("IMSVD_DATA") or Path.home() / ".cache" / "imsvd").expanduser()


def open_cifar10(split: Split) -> ImageSource:
    """Open CIFAR-10: 50,000 + 10,000 images, 32 px, 10 classes."""
    return _open_cifar("cifar10", "CIFAR10", "CIFAR-10", "cifar-10-python.tar.gz", split)


def open_cifar100(split: Split) -> ImageSource:
    """Open CIFAR-100: 50,000 + 10,000 images, 32 px, 100 classes."""
    return _open_cifar("cifar100", "CIFAR100", "CIFAR-100", "cifar-100-python.tar.gz", split)


def open_stl10(split: Split) -> ImageSource:
    """Open the labeled part of STL-10: 5,000 + 8,000 images, 96 px, 10 classes."""
    return _open_stl10("stl10", split, split)


def open_stl10_unlabeled(split: Split) -> ImageSource:
    """Open STL-10 with its 100,000 unlabeled images for training; tests use the labeled ones."""
    return _open_stl10("stl10-unlabeled", split, "unlabeled" if split == "train" else "test")


NAMED: dict[str, Callable[[Split], ImageSource]] = {
    "cifar10": open_cifar10,
    "cifar100": open_cifar100,
    "stl10": open_stl10,
    "stl10-unlabeled": open_stl10_unlabeled,
}


def _open_cifar(name: str, class_name: str, title: str, archive: str, split: Split) -> ImageSource:
    dataset = _fetch(class_name, title, archive, train=split == "train")
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(dataset.targets, dtype=torch.int64)
    return ArraySource(f"{name}/{split}", images, labels, tuple(dataset.classes))


def _open_stl10(name: str, split: Split, part: str) -> ImageSource:
    dataset = _fetch("STL10", "STL-10", "stl10_binary.tar.gz", split=part)
    images = torch.from_numpy(dataset.data)
    if part == "unlabeled":
        return ArraySource(f"{name}/{split}", images)
    labels = torch.from_numpy(dataset.labels).to(torch.int64)
    return ArraySource(f"{name}/{split}", images, labels, tuple(dataset.classes))


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from downloading the same files; they wait and then find them."""
    with contextlib.ExitStack() as stack:
        # A folder that cannot be written needs no lock: nothing is downloaded into it.
        with contextlib.suppress(OSError):
            lock = stack.enter_context((folder / ".lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(class_name: str, title: str, archive: str, **options: object) -> Any:
    """Return the torchvision dataset, downloading it first if necessary."""
    # Imported here because it takes a second and most data are folders.
    from torchvision import datasets  # noqa: PLC0415

    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # torchvision prints its progress; standard output may be read by a program.
        with _alone_in(folder), contextlib.redirect_stdout(sys.stderr):
            return getattr(datasets, class_name)(root=str(folder), download=True, **options)
    except (OSError, RuntimeError, EOFError, tarfile.TarError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{title} is not in {folder} and could not be downloaded "
            f"({type(error).__name__}: {error}); connect to the internet once, put {archive} into "
            f"that folder, or set IMSVD_DATA to the folder that holds it."
        ) from error


class Places205(NamedTuple):
    """Both parts. The official test images have no labels, so `test` is the validation list."""

    train: PathSource
    test: PathSource


class _Listed(NamedTuple):
    path: Path
    names: list[str]
    labels: list[int]


def open_places205(root: str | Path) -> Places205:
    """Open the folder into which the archives of Places205 were unpacked.

        trainvalsplit_places205/train_places205.csv         a/abbey/gsun_00a4.jpg 0
        trainvalsplit_places205/val_places205.csv
        data/vision/torralba/deeplearning/images256/a/abbey/gsun_00a4.jpg

    The lists may also be in the folder itself, and the images in it or in images256/. Lists and
    the existence of all images are checked here; images are decoded later.
    """
    base = Path(root).expanduser()
    require_folder(base)
    train, test = (_read_list(_find_list(base, split)) for split in ("train", "val"))
    images = _find_images(base, train)
    classes = tuple(map(str, range(max(train.labels) + 1)))
    sources = []
    for part in (train, test):
        _require_images(images, part)
        sources.append(PathSource(images, part.names, torch.tensor(part.labels), classes))
    return Places205(*sources)


def _find_list(base: Path, split: str) -> Path:
    name = f"{split}_places205.csv"
    for folder in _PLACES_LISTS:
        if (base / folder / name).is_file():
            return base / folder / name
    raise InputError(
        f"{base} does not have the layout of Places205: it holds no {name}; "
        "give the folder that contains its images and trainvalsplit_places205."
    )


def _read_list(path: Path) -> _Listed:
    names: list[str] = []
    labels: list[int] = []
    for number, raw in enumerate(path.read_bytes().splitlines(), start=1):
        line = os.fsdecode(raw).strip()
        if not line:
            continue
        match = _PLACES_LINE.fullmatch(line)
        if match is None or "\0" in line:
            raise InputError(f"{path}, line {number}, is not a path and a label: {line[:80]!r}.")
        if not 0 <= int(match["label"]) < _PLACES_CLASSES:
            raise InputError(
                f"{path}, line {number}, has the label {match['label']}; "
                f"labels are 0 to {_PLACES_CLASSES - 1}."
            )
        names.append(match["path"])
        labels.append(int(match["label"]))
    if not names:
        raise InputError(f"{path} lists no images; take it from trainvalsplit_places205.tar.gz.")
    return _Listed(path, names, labels)


def _find_images(base: Path, train: _Listed) -> Path:
    """Return the folder to which paths are relative: the first that holds the first image."""
    candidates = [base / folder for folder in _PLACES_IMAGES]
    found = next((folder for folder in candidates if (folder / train.names[0]).is_file()), None)
    return found or next(folder for folder in reversed(candidates) if folder.is_dir())


def _require_images(images: Path, part: _Listed) -> None:
    """Raise `InputError` if a listed image is missing; lists whole folders, as there are millions."""
    contents: dict[str, set[str]] = {}
    for name in part.names:
        folder, _, file = name.rpartition("/")
        if folder not in contents:
            with contextlib.suppress(OSError):
                contents[folder] = set(os.listdir(images / folder))  # noqa: PTH208 - names only
        if file not in contents.get(folder, ()):
            raise InputError(
                f"{part.path} lists {printable(name)}, which is not in {images}; "
                "add the image or remove it from the list."
            )
