"""Names that the user gives to units: `names.json` in a run folder, copied to every index made with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from imsvd.errors import InputError
from imsvd.files import write_atomically

FILE_NAME = "names.json"
MOST_CHARACTERS = 80
_UNIT = re.compile(r"(\d{1,6})\.(\d{1,6})")


def parse_unit(text: str, units: Sequence[int]) -> tuple[int, int]:
    """Return variable and unit of a text such as "12.3"."""
    match = _UNIT.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not a unit; write the variable and the unit as in 12.3.")
    variable, unit = int(match[1]), int(match[2])
    if variable >= len(units):
        raise InputError(f"there is no variable {variable}; there are 0 to {len(units) - 1}.")
    if unit >= units[variable]:
        raise InputError(
            f"variable {variable} has no unit {unit}; it has 0 to {units[variable] - 1}."
        )
    return variable, unit


def read_names(run: str | Path) -> dict[str, str]:
    """Return the names in a run folder by unit; none if there are none."""
    path = Path(run) / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read; repair or delete it.") from error
    if not isinstance(content, dict) or not all(
        _UNIT.fullmatch(unit) and isinstance(name, str) for unit, name in content.items()
    ):
        raise InputError(f'{path} must map units to names, as in {{"12.3": "stripes"}}.')
    return content


def write_names(run: str | Path, names: Mapping[str, str]) -> None:
    """Replace the names in a run folder."""
    content = json.dumps(names, indent=1, ensure_ascii=False) + "\n"
    write_atomically(Path(run) / FILE_NAME, content.encode())


def named(names: Mapping[str, str], unit: str, name: str) -> dict[str, str]:
    """Return `names` with a unit named, or with its name removed if `name` is empty.

    Several units may have the same name; a search finds images with any of them.
    """
    name = " ".join(name.split())
    if len(name) > MOST_CHARACTERS:
        raise InputError(f"a name has at most {MOST_CHARACTERS} characters, not {len(name)}.")
    if '"' in name or not name.isprintable():
        raise InputError(f"the name {name!r} must not contain quotes or control characters.")
    if _UNIT.fullmatch(name):
        raise InputError(f"the name {name!r} looks like a unit; choose a word.")
    others = {key: value for key, value in names.items() if key != unit}
    changed = {**others, unit: name} if name else others
    return dict(
        sorted(changed.items(), key=lambda item: [int(part) for part in item[0].split(".")])
    )
