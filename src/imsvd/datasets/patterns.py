"""Several files by one name: shards-{000..127}.tar, data/*.parquet."""

import glob
import itertools
import re
from pathlib import Path

from imsvd.errors import InputError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_FILES = 1_000_000


def is_pattern(data: str) -> bool:
    """Whether a name stands for several files."""
    return _BRACES.search(data) is not None or glob.has_magic(data)


def expand(pattern: str) -> list[Path]:
    """The files that a pattern stands for; raises `InputError` if there are none."""
    files: list[Path] = []
    for name in itertools.islice(_expand_braces(pattern), _MAX_FILES):
        path = Path(name).expanduser()
        if glob.has_magic(name):
            files += map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - ~, ..
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"there is no file {path}, which {pattern} stands for among others")
    if not files:
        raise InputError(f"no file matches {pattern}")
    return files


def _expand_braces(pattern: str) -> "itertools.chain[str]":
    match = _BRACES.search(pattern)
    if match is None:
        return itertools.chain([pattern])
    before, after = pattern[: match.start()], pattern[match.end() :]
    return itertools.chain.from_iterable(
        _expand_braces(before + choice + after) for choice in _choices(match[1])
    )


def _choices(inside: str) -> list[str]:
    span = _RANGE.fullmatch(inside)
    if span is None:
        return inside.split(",")
    first, last = int(span[1]), int(span[2])
    if last - first >= _MAX_FILES:
        raise InputError(f"{{{inside}}} stands for more than {_MAX_FILES:,} files")
    return [str(number).zfill(len(span[1])) for number in range(first, last + 1)]
