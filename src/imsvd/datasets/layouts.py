"""What names and values say about images: which files count, their class, and their split."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from imsvd.datasets.sources import ImageSource, printable
from imsvd.errors import InputError

Split = Literal["train", "test"]
TEST_NAMES = ("test", "val", "valid", "validation")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")

_SPLIT_WORD = re.compile(r"(train|test|validation|valid|val)(?![a-z])")
# Larger labels are identifiers rather than classes counted from 0.
_MAX_CLASSES = 1_000_000

Part = TypeVar("Part")
Parts = tuple[Part, Sequence[Part]]
"""The training part of some data and the candidates for testing."""


class NoImagesError(InputError):
    """A readable place without images."""

    def __init__(self, where: object) -> None:
        looked_for = ", ".join(extension[1:] for extension in EXTENSIONS)
        super().__init__(f"{where} holds no images (looked for {looked_for}).")


class NoTestImagesError(InputError):
    """Data without a test split."""


class Labeling(NamedTuple):
    """Class of every image, (n,) int64, and name of every class; (None, ()) if unlabeled."""

    labels: Tensor | None = None
    classes: tuple[str, ...] = ()


def is_hidden(name: str) -> bool:
    """Return whether an entry of a folder was not made by the user, such as .DS_Store."""
    return name.startswith(".") or name == "__MACOSX"


def is_image_name(name: str) -> bool:
    """Return whether the name has the extension of an image."""
    return name.lower().endswith(EXTENSIONS)


def member_name(name: str) -> str | None:
    """Return the relative path of an archive's member, or None if it is not a visible image."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    if not parts or not is_image_name(parts[-1]) or any(map(is_hidden, parts)):
        return None
    return "/".join(parts)


def label_by_folder(where: object, names: Sequence[str], classes: Sequence[str] | None) -> Labeling:
    """Take first-level folders as classes if there are two or more and all images lie in one.

    Where `classes` is given, it fixes the numbering, and a single folder suffices.
    """
    if not all("/" in name for name in names):
        return Labeling()
    owners = [name.partition("/")[0] for name in names]
    printed = {owner: printable(owner) for owner in sorted(set(owners))}
    if classes is None:
        if len(printed) < 2:
            return Labeling()
    elif not set(printed.values()) & set(classes):
        return Labeling()  # folders of another kind, such as test/images/
    known = tuple(printed.values()) if classes is None else tuple(classes)
    return _number(where, [printed[owner] for owner in owners], known)


def label_by_value(
    where: object,
    values: Sequence[int | str | None],
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Labeling:
    """Label every image by one value: the number of a class, from 0, or its name.

    Args:
        where: the data, for error messages.
        values: -1 and None mean "unknown"; if any is unknown, all images count as unlabeled.
        names: names of the numbers, if known.
        classes: the classes of the training images, which fix the numbering.
    """
    numbers = _as_numbers(values)
    if numbers is None:
        if any(value is None for value in values):
            return Labeling()
        named = [printable(str(value)) for value in values]
        return _number(where, named, tuple(classes or sorted(set(named))))
    if not numbers or min(numbers) < 0:
        return Labeling()
    if names is None and max(numbers) >= _MAX_CLASSES:
        distinct = map(str, sorted(set(numbers)))
        return _number(where, list(map(str, numbers)), tuple(classes or distinct))
    own = tuple(names) if names is not None else tuple(map(str, range(max(numbers) + 1)))
    if max(numbers) >= len(own):
        raise InputError(f"{where} has a label {max(numbers)} but names only {len(own)} classes.")
    return _number(where, [own[number] for number in numbers], tuple(classes or own))


def _as_numbers(values: Sequence[int | str | None]) -> list[int] | None:
    """Return the values as integers, unknown ones as -1; None if a value is not an integer."""
    try:
        return [-1 if value is None else int(value) for value in values]
    except ValueError:
        return None


def _number(where: object, named: Sequence[str], classes: tuple[str, ...]) -> Labeling:
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = next((name for name in named if name not in numbers), None)
    if unknown is not None:
        raise InputError(f"{where} has a class '{unknown}' that the training images lack.")
    return Labeling(torch.tensor([numbers[name] for name in named]), classes)


def open_split(
    split: Split,
    parts: Parts[Part],
    open_part: Callable[[Part, tuple[str, ...] | None], ImageSource],
    missing: str,
) -> ImageSource:
    """Open the part of the data for `split`; of several test parts, the first with labels.

    Args:
        split: "train" or "test".
        parts: the parts that exist.
        open_part: opens a part; its labels are numbered according to the classes given.
        missing: error message if there is no test part.
    """
    train, tests = parts
    training = open_part(train, None)  # also for "test", so that bad data fail alike
    if split == "train":
        return training
    if not tests:
        raise NoTestImagesError(missing)
    # Labels are numbered as in training even if a test part lacks a class.
    classes = training.classes or None
    candidates = (open_part(part, classes) for part in tests)
    first = next(candidates)
    if first.labels is not None or classes is None:
        return first
    return next((other for other in candidates if other.labels is not None), first)


def parts_of_names(names: Sequence[str]) -> Parts[str]:
    """Find the folders of an archive for training and testing, "" or ending with a slash.

    A single folder around everything else, which archives commonly have, is skipped.
    """
    wrapper = ""
    top = _first_folders(names)
    if len(top) == 1 and "train" not in top and "" not in top:
        wrapper = f"{top.pop()}/"
        top = _first_folders(name.removeprefix(wrapper) for name in names)
    tests = [f"{wrapper}{name}/" for name in TEST_NAMES if name in top]
    if "train" in top and (tests or len(top) == 1):
        return f"{wrapper}train/", tests
    return wrapper, []


def _first_folders(names: Iterable[str]) -> set[str]:
    """Return the first-level folders; "" stands for images outside of any."""
    return {name.partition("/")[0] if "/" in name else "" for name in names}


def parts_of_files(files: Sequence[Path]) -> Parts[list[Path]]:
    """Group files such as train-00000.tar or val/00000.parquet by split.

    If no file is named train, all of them are for training.
    """
    found: dict[str, list[Path]] = {}
    for file in files:
        found.setdefault(_split_word(file), []).append(file)
    if "train" not in found:
        return list(files), _test_siblings(files)
    tests = [found[name] for name in TEST_NAMES if name in found]
    return found["train"], tests or _test_siblings(files)


def _split_word(file: Path) -> str:
    """Return the split with which the name of the file, or of its nearest folders, begins."""
    for part in (file.name, file.parent.name, file.parent.parent.name):
        match = _SPLIT_WORD.match(part.lower())
        if match is not None:
            return match[1]
    return ""


def _test_siblings(files: Sequence[Path]) -> list[list[Path]]:
    """Return the test.zip or val.zip beside a single train.zip."""
    if len(files) != 1 or files[0].stem != "train":
        return []
    siblings = [files[0].with_stem(name) for name in TEST_NAMES]
    return [[sibling] for sibling in siblings if sibling.is_file()]
