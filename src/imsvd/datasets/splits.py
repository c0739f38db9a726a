"""Which part of the data is for training and which for testing, told by names."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from imsvd.datasets.named import Split
from imsvd.datasets.source import ImageSource
from imsvd.errors import InputError

TEST_NAMES = ("test", "val", "valid", "validation")
_SPLIT_WORD = re.compile(r"(train|test|validation|valid|val)(?![a-z])")

Part = TypeVar("Part")
Parts = tuple[Part, Sequence[Part]]
"""The training part and the possible test parts."""


class ArchiveIndex(Protocol):
    """What is known of archives once their tables of contents are read."""

    @property
    def names(self) -> Sequence[str]:
        """Paths of the images inside."""


Index = TypeVar("Index", bound=ArchiveIndex)


def open_split(
    split: Split,
    parts: Parts[Part],
    open_part: Callable[[Part, tuple[str, ...] | None], ImageSource],
    missing: str,
) -> ImageSource:
    """Open the part that `split` asks for; of several test parts, the first with labels.

    Args:
        split: the wish.
        parts: what there is.
        open_part: opens a part, its labels numbered by the classes given.
        missing: what to say when there is nothing to test on.
    """
    train, tests = parts
    training = open_part(train, None)  # to test on missing or empty data is the same complaint
    if split == "train":
        return training
    if not tests:
        raise InputError(missing)
    # Labels are numbered as in training, also where a test part lacks a class.
    classes = training.classes or None
    candidates = (open_part(part, classes) for part in tests)
    first = next(candidates)
    if first.labels is not None or classes is None:
        return first
    return next((other for other in candidates if other.labels is not None), first)


def open_archives(
    files: Sequence[Path],
    split: Split,
    read_index: Callable[[Sequence[Path]], Index],
    open_folder: Callable[[Index, str, Sequence[str] | None], ImageSource],
    missing: str,
) -> ImageSource:
    """Open those of some archives that `split` names, or the folder of that name within them.

    Args:
        files: the archives.
        split: the wish.
        read_index: reads the tables of contents of archives.
        open_folder: opens the images below a prefix, their labels numbered by the classes given.
        missing: what to say when there is nothing to test on.
    """
    train, tests = parts_of_files(files)
    if not tests:
        index = read_index(train)
        return open_split(
            split,
            parts_of_names(index.names),
            lambda prefix, classes: open_folder(index, prefix, classes),
            missing,
        )

    def open_whole(part: Sequence[Path], classes: Sequence[str] | None) -> ImageSource:
        index = read_index(part)
        folder, _ = parts_of_names(index.names)
        return open_folder(index, folder, classes)

    return open_split(split, (train, tests), open_whole, missing)


def parts_of_names(names: Sequence[str]) -> Parts[str]:
    """The folders of an archive to train and to test on, "" or ending with a slash.

    A folder that wraps everything else is passed over, as archives commonly have one.
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
    """The first-level folders; "" stands for images outside any."""
    return {name.partition("/")[0] if "/" in name else "" for name in names}


def parts_of_files(files: Sequence[Path]) -> Parts[list[Path]]:
    """Files such as train-00000.tar or val/00000.parquet, by split; all train without any train."""
    found: dict[str, list[Path]] = {}
    for file in files:
        found.setdefault(_split_word(file), []).append(file)
    if "train" not in found:
        return list(files), _test_siblings(files)
    tests = [found[name] for name in TEST_NAMES if name in found]
    return found["train"], tests or _test_siblings(files)


def _split_word(file: Path) -> str:
    """The split that the file's name, or else one of its nearest folders', begins with."""
    for part in (file.name, file.parent.name, file.parent.parent.name):
        match = _SPLIT_WORD.match(part.lower())
        if match is not None:
            return match[1]
    return ""


def _test_siblings(files: Sequence[Path]) -> list[list[Path]]:
    """For train.zip the test.zip or val.zip beside it."""
    if len(files) != 1 or files[0].stem != "train":
        return []
    siblings = [files[0].with_stem(name) for name in TEST_NAMES]
    return [[sibling] for sibling in siblings if sibling.is_file()]
