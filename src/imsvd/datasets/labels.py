"""Labels from where they are found: class folders, or one value per image."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from imsvd.datasets.names import printable
from imsvd.errors import InputError

# Numbers beyond are identifiers rather than classes counted from 0.
_MAX_CLASSES = 1_000_000


class Labeling(NamedTuple):
    """Class of every image, (n,) int64, and name of every class; (None, ()) when unlabeled."""

    labels: Tensor | None = None
    classes: tuple[str, ...] = ()


def label_by_folder(where: object, names: Sequence[str], classes: Sequence[str] | None) -> Labeling:
    """First-level folders are the classes if there are two or more and all images lie in one.

    `classes`, where given, fixes the numbering, and one folder suffices.
    """
    if not all("/" in name for name in names):
        return Labeling()
    owners = [name.partition("/")[0] for name in names]
    found = sorted(set(owners))
    if classes is None:
        if len(found) < 2:
            return Labeling()
    elif not set(map(printable, found)) & set(classes):
        return Labeling()  # sub-folders of another kind, such as test/images/
    printed = {owner: printable(owner) for owner in found}
    known = tuple(printed.values()) if classes is None else tuple(classes)
    return _numbered(where, [printed[owner] for owner in owners], known)


def label_by_value(
    where: object,
    values: Sequence[int | str | None],
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Labeling:
    """One value per image: a class's number from 0, or its name.

    Args:
        where: what to name in an error.
        values: -1 and None mean "unknown"; if any is, all images count as unlabeled.
        names: names of the numbers, where the data tell them.
        classes: the numbering to follow, that of the training images.
    """
    numbers = _as_numbers(values)
    if numbers is None:
        if any(value is None for value in values):
            return Labeling()
        named = [printable(str(value)) for value in values]
        return _numbered(where, named, tuple(classes or sorted(set(named))))
    if not numbers or min(numbers) < 0:
        return Labeling()
    if names is None and max(numbers) >= _MAX_CLASSES:
        every = sorted(set(numbers))
        return _numbered(where, list(map(str, numbers)), tuple(classes or map(str, every)))
    own = tuple(names) if names is not None else tuple(map(str, range(max(numbers) + 1)))
    if max(numbers) >= len(own):
        raise InputError(f"{where} has a label {max(numbers)} but names only {len(own)} classes")
    return _numbered(where, [own[number] for number in numbers], tuple(classes or own))


def _as_numbers(values: Sequence[int | str | None]) -> list[int] | None:
    """The values as integers, unknown ones as -1; None unless all are integers or unknown."""
    try:
        return [-1 if value is None else int(value) for value in values]
    except ValueError:
        return None


def _numbered(where: object, named: Sequence[str], classes: tuple[str, ...]) -> Labeling:
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = next((name for name in named if name not in numbers), None)
    if unknown is not None:
        raise InputError(f"{where} has a class '{unknown}' that the training images lack")
    return Labeling(torch.tensor([numbers[name] for name in named]), classes)
