"""Names and stars that the user gives to variables and units: `names.json` in a run folder.

`{"12": "shape", "12.3": "stripes", "starred": ["12.3"]}` names variable 12 and its unit 3, and stars the unit.
`imsvd name`, searches and the explorer all use this file; names are copied to every index made with the run. A
name that was removed stays as `""`, so that its copies in indexes are not used either.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imsvd.errors import InputError
from imsvd.files import write_atomically

FILE_NAME = "names.json"
STARRED = "starred"
MOST_CHARACTERS = 80
_UNIT = re.compile(r"(\d{1,6})\.(\d{1,6})", re.ASCII)
_PLACE = re.compile(r"(\d{1,6})(?:\.(\d{1,6}))?", re.ASCII)


class Notes(NamedTuple):
    """What the user noted about variables such as "12" and units such as "12.3"."""

    names: dict[str, str]
    starred: tuple[str, ...]


def checked_place(text: str, units: Sequence[int]) -> str:
    """Return a variable such as "12" or a unit such as "12.3" without leading zeros, if it exists."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InputError(
            f"{text!r} is not a variable or unit; write a variable as 12, and its unit 3 as 12.3."
        )
    variable = int(match[1])
    if variable >= len(units):
        raise InputError(f"there is no variable {variable}; there are 0 to {len(units) - 1}.")
    if match[2] is None:
        return str(variable)
    if int(match[2]) >= units[variable]:
        raise InputError(
            f"variable {variable} has no unit {int(match[2])}; it has 0 to {units[variable] - 1}."
        )
    return f"{variable}.{int(match[2])}"


def read_notes(run: str | Path) -> Notes:
    """Return the names and stars in a run folder; none if there are none."""
    notes = _read(run)
    return notes._replace(names=_without_removed(notes.names))


def read_names(run: str | Path) -> dict[str, str]:
    """Return the names in a run folder, by variable or unit; none if there are none."""
    return read_notes(run).names


def with_names_of(run: str | Path, copied: Mapping[str, str]) -> dict[str, str]:
    """Return the names that an index copied, as the run folder has changed or removed them since."""
    return _without_removed({**copied, **_read(run).names})


def _without_removed(names: Mapping[str, str]) -> dict[str, str]:
    return {place: name for place, name in names.items() if name}


def _read(run: str | Path) -> Notes:
    """Return what is in the file; removed names are empty."""
    path = Path(run) / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Notes({}, ())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read; repair or delete it.") from error
    names = dict(content) if isinstance(content, dict) else {"": ""}
    starred = names.pop(STARRED, [])
    whole = isinstance(starred, list) and all(isinstance(place, str) for place in starred)
    if not (
        whole
        and all(_PLACE.fullmatch(place) for place in (*names, *starred))
        and all(isinstance(name, str) for name in names.values())
    ):
        raise InputError(
            f'{path} must map variables and units to names, as in {{"12.3": "stripes"}}; '
            f'"{STARRED}" must be a list, as in ["12.3"].'
        )
    return Notes(names, tuple(starred))


def note(
    run: str | Path,
    place: str,
    units: Sequence[int],
    *,
    name: str | None = None,
    starred: bool | None = None,
) -> Notes:
    """Name or star a variable or unit in a run folder, and return all notes.

    Args:
        run: the run folder.
        place: a variable such as "12" or a unit such as "12.3".
        units: number of units of every variable of the run.
        name: the new name; "" removes it, None keeps it.
        starred: whether it is starred; None keeps its star.
    """
    place = checked_place(place, units)
    with _locked(Path(run)):
        before = _read(run)
        names, stars = dict(before.names), before.starred
        if name is not None:
            names[place] = checked_name(name)
            if not names[place] and place not in before.names:
                del names[place]
        if starred is not None:
            others = [other for other in stars if other != place]
            stars = tuple(_in_order([*others, place] if starred else others))
        after = Notes({key: names[key] for key in _in_order(names)}, stars)
        if after != before:
            _write(run, after)
    return after._replace(names=_without_removed(after.names))


def named(names: Mapping[str, str], place: str, name: str) -> dict[str, str]:
    """Return `names` with a variable or unit named, or with its name removed if `name` is empty.

    Several units may have the same name; a search finds images with any of them.
    """
    changed = {**names, place: checked_name(name)}
    return _without_removed({key: changed[key] for key in _in_order(changed)})


def checked_name(name: str) -> str:
    """Return a name with single spaces, if queries and terminals can hold it."""
    name = " ".join(name.split())
    if len(name) > MOST_CHARACTERS:
        raise InputError(f"a name has at most {MOST_CHARACTERS} characters, not {len(name)}.")
    if '"' in name or not name.isprintable():
        raise InputError(f"the name {name!r} must not contain quotes or control characters.")
    if _UNIT.fullmatch(name):
        raise InputError(f"the name {name!r} looks like a unit; choose a word.")
    return name


def _in_order(places: Iterable[str]) -> list[str]:
    return sorted(places, key=lambda place: [int(part) for part in place.split(".")])


def _write(run: str | Path, notes: Notes) -> None:
    record: dict[str, object] = dict(notes.names)
    if notes.starred:
        record[STARRED] = notes.starred
    content = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    try:
        write_atomically(Path(run) / FILE_NAME, content.encode())
    except InputError as error:
        raise InputError(
            f"{str(error).removesuffix('.')}; names and stars are kept in the run folder, so make it "
            "writable or use a copy of it."
        ) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one thread of one process at a time change the notes, so that no change is lost."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{folder} cannot be opened: {error.strerror}.") from error
    try:
        with contextlib.suppress(OSError):  # some network drives have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
