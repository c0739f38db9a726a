"""Datasets known by name, downloaded once through torchvision.

They are kept in the folder the environment variable IMSVD_DATA names, else in ~/.cache/imsvd.
"""

import contextlib
import fcntl
import os
import pickle
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from imsvd.datasets.arrays import ArraySource
from imsvd.datasets.source import ImageSource
from imsvd.errors import InputError

Split = Literal["train", "test"]


def data_folder() -> Path:
    """Where named datasets are kept."""
    return Path(os.environ.get("IMSVD_DATA") or Path.home() / ".cache" / "imsvd").expanduser()


def open_cifar10(split: Split) -> ImageSource:
    """CIFAR-10: 50,000 + 10,000 images, 32 px, 10 classes."""
    return _open_cifar("cifar10", "CIFAR10", "CIFAR-10", "cifar-10-python.tar.gz", split)


def open_cifar100(split: Split) -> ImageSource:
    """CIFAR-100: 50,000 + 10,000 images, 32 px, 100 classes."""
    return _open_cifar("cifar100", "CIFAR100", "CIFAR-100", "cifar-100-python.tar.gz", split)


def open_stl10(split: Split) -> ImageSource:
    """STL-10, the labeled part: 5,000 + 8,000 images, 96 px, 10 classes."""
    return _open_stl10("stl10", split, split)


def open_stl10_unlabeled(split: Split) -> ImageSource:
    """STL-10: its 100,000 unlabeled images to train on, its labeled ones to test on."""
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
    """Keep other processes from downloading to the same files; they then find them there."""
    with contextlib.ExitStack() as stack:
        # Where nothing can be written, nothing is downloaded either.
        with contextlib.suppress(OSError):
            lock = stack.enter_context((folder / ".lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(class_name: str, title: str, archive: str, **options: object) -> Any:
    """The torchvision dataset, downloaded if it is not there yet."""
    # Here rather than at the top: it takes a second, and most data are folders.
    from torchvision import datasets  # noqa: PLC0415

    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # torchvision prints its progress, and standard output may be read by a program.
        with _alone_in(folder), contextlib.redirect_stdout(sys.stderr):
            return getattr(datasets, class_name)(root=str(folder), download=True, **options)
    except (OSError, RuntimeError, EOFError, tarfile.TarError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{title} is not in {folder} and could not be downloaded "
            f"({type(error).__name__}: {error}); connect to the internet once, put {archive} into "
            f"that folder, or set IMSVD_DATA to the folder that holds it"
        ) from error
