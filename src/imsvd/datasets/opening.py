"""From the name, folder, files or address that the user gives to a source of images."""

import difflib
import glob
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from imsvd.datasets.archives import open_tars, open_zip, refuse_compressed
from imsvd.datasets.drawn.shapes import MIN_SIZE, ShapesSource
from imsvd.datasets.folders import ImageFolderSource, open_list, require_folder
from imsvd.datasets.layouts import (
    TEST_NAMES,
    NoImagesError,
    Parts,
    Split,
    is_hidden,
    open_split,
)
from imsvd.datasets.named import NAMED
from imsvd.datasets.sources import ImageSource
from imsvd.datasets.streams import is_remote, is_shard_folder, open_stream
from imsvd.datasets.tables import is_saved_dataset, open_saved_dataset, open_tables
from imsvd.errors import InputError

DATASET_NAMES = ("shapes", *NAMED)
_SHAPES = re.compile(r"shapes(?::(?P<count>\d+))?(?:@(?P<size>\d+))?")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_FILES = 1_000_000


def open_source(data: str | Path, split: Split = "train") -> ImageSource:
    """Open a dataset by name, folder or file.

    - "cifar10", "cifar100", "stl10", "stl10-unlabeled": downloaded once.
    - "shapes": drawn on demand; "shapes:5000" has 5,000 training images, "shapes@64" is 64 px.
    - a folder with train/ and test/ (or val/, valid/, validation/), such as ImageNet: `split`
      selects one. Of several test folders, the first with labels.
    - any other folder of images: all of it is for training.
    - a .zip or .tar, read in place, with the same rules for its contents.
    - a .parquet or .arrow file, or a folder saved by Hugging Face `datasets`.
    - a .txt or .lst file that lists images, one path per line.
    - several .tar, .parquet or .arrow files: their folder, "folder/*.tar", "s-{000..127}.tar";
      names that begin with train, test or val determine the split.
    - a folder of litdata shards, or "s3://…", "gs://…", "r2://…", "azure://…": streamed.

    A name takes precedence over a folder of that name; write "./shapes" for the folder.

    Raises:
        InputError: if the data cannot be opened.
    """
    if isinstance(data, str):
        if _SHAPES.fullmatch(data):
            return _open_shapes(data, split)
        if data in NAMED:
            return NAMED[data](split)
        if is_remote(data):
            return open_stream(data, split)
    root = Path(data).expanduser()
    if not _exists(root) and _is_pattern(str(data)):
        return _open_files(expand_pattern(str(data)), split)
    # A bare word that is not a path may be a misspelled name; Path("") is the current folder.
    if isinstance(data, str) and (not data or ("/" not in data and not _exists(root))):
        raise InputError(_unknown(data))
    if _is_file(root):
        return _open_files([root], split)
    require_folder(root)
    return _open_folder(root, split)


def absolute(data: str | Path) -> str:
    """Return the absolute path of a folder or file; names and addresses stay as they are."""
    path = Path(data).expanduser()
    # As in `open_source`, a name takes precedence over a folder of that name.
    named = isinstance(data, str) and re.split("[:@]", data)[0] in DATASET_NAMES
    return str(path.resolve()) if path.exists() and not named else str(data)


def _open_shapes(name: str, split: Split) -> ImageSource:
    match = _SHAPES.fullmatch(name)
    assert match is not None
    count, size = match["count"], match["size"]
    if count is not None and int(count) == 0:
        raise InputError(f"'{name}' has no images; write for example shapes:5000.")
    if size is not None and int(size) < MIN_SIZE:
        raise InputError(f"'{name}' has images of {size} px; shapes must have {MIN_SIZE} or more.")
    return ShapesSource(
        split,
        # The number of test images is fixed, so that scores are comparable.
        count=int(count) if count is not None and split == "train" else None,
        size=int(size) if size is not None else 32,
    )


_CONTAINERS: dict[str, Callable[[Sequence[Path], Split], ImageSource]] = {
    ".tar": open_tars,
    ".parquet": open_tables,
    ".arrow": open_tables,
    ".zip": open_zip,
    **dict.fromkeys((".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst"), refuse_compressed),
}
_OPENERS = {**_CONTAINERS, ".txt": open_list, ".lst": open_list}


def _open_files(files: list[Path], split: Split) -> ImageSource:
    kinds = sorted({path.suffix.lower() for path in files})
    if len(kinds) > 1:
        raise InputError(
            f"{files[0]} is mixed with files of other kinds ({', '.join(kinds)}); give one kind."
        )
    if kinds[0] not in _OPENERS or not _is_file(files[0]):
        raise InputError(
            f"{files[0]} is a file; give the folder that holds the images, or a .zip, .tar, "
            f".parquet, .arrow, .txt or .lst file."
        )
    return _OPENERS[kinds[0]](files, split)


def _open_folder(root: Path, split: Split) -> ImageSource:
    if not os.access(root, os.R_OK | os.X_OK):
        raise InputError(f"the folder {root} cannot be read (no permission).")
    if is_saved_dataset(root):
        return open_saved_dataset(root, split)
    if is_shard_folder(root):
        return open_stream(str(root), split)
    try:
        return open_split(
            split,
            _parts_of_folder(root),
            ImageFolderSource,
            f"{root} has no test images: give a folder with train/ and test/ (or val/) in it.",
        )
    except NoImagesError:
        files = _containers_in(root)
        if not files:
            raise
        return _open_files(files, split)


def _parts_of_folder(root: Path) -> Parts[Path]:
    tests = [root / name for name in TEST_NAMES if (root / name).is_dir()]
    train = root / "train"
    if train.is_dir() and (tests or _holds_nothing_but(root, "train")):
        return train, tests
    return root, []


def _containers_in(root: Path) -> list[Path]:
    """Return the archives or tables in a folder and its subfolders, all of the first kind found."""
    found: dict[str, list[Path]] = {}
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        kind = path.suffix.lower()
        if kind in _CONTAINERS and not is_hidden(path.name) and path.is_file():
            found.setdefault(kind, []).append(path)
    return next((found[kind] for kind in _CONTAINERS if kind in found), [])


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long or impossible
        return False


def _is_file(path: Path) -> bool:
    return _exists(path) and not path.is_dir()


def _holds_nothing_but(root: Path, name: str) -> bool:
    """Return whether `name` is the only visible entry; otherwise it may be a class."""
    return [entry.name for entry in root.iterdir() if not entry.name.startswith(".")] == [name]


def _unknown(data: str) -> str:
    near = difflib.get_close_matches(data.lower(), DATASET_NAMES, n=1, cutoff=0.6)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    names = ", ".join(DATASET_NAMES)
    return (
        f"'{data}' is neither a folder or file nor a built-in dataset ({names}){suggestion or '.'}"
    )


def _is_pattern(data: str) -> bool:
    """Return whether a name stands for several files."""
    return _BRACES.search(data) is not None or glob.has_magic(data)


def expand_pattern(pattern: str) -> list[Path]:
    """Return the files that a pattern such as s-{000..127}.tar or data/*.parquet stands for."""
    files: list[Path] = []
    for name in itertools.islice(_expand_braces(pattern), _MAX_FILES):
        path = Path(name).expanduser()
        if glob.has_magic(name):
            files += map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - ~, ..
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"there is no file {path}, to which {pattern} expands.")
    if not files:
        raise InputError(f"no file matches {pattern}.")
    return files


def _expand_braces(pattern: str) -> Iterator[str]:
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    for choice in _choices(match[1]):
        yield from _expand_braces(pattern[: match.start()] + choice + pattern[match.end() :])


def _choices(inside: str) -> list[str]:
    span = _RANGE.fullmatch(inside)
    if span is None:
        return inside.split(",")
    first, last = int(span[1]), int(span[2])
    if last - first >= _MAX_FILES:
        raise InputError(f"{{{inside}}} stands for more than {_MAX_FILES:,} files.")
    return [str(number).zfill(len(span[1])) for number in range(first, last + 1)]
