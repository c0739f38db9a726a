"""From what the user calls the data to a source of images."""

import difflib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from imsvd.datasets.arrow_files import (
    is_saved_dataset,
    open_arrow,
    open_parquet,
    open_saved_dataset,
)
from imsvd.datasets.drawn.shapes import MIN_SIZE, ShapesSource
from imsvd.datasets.folder import ImageFolderSource, require_folder
from imsvd.datasets.named import NAMED, Split
from imsvd.datasets.names import NoImagesError, is_hidden
from imsvd.datasets.path_list import open_list
from imsvd.datasets.patterns import expand, is_pattern
from imsvd.datasets.source import ImageSource
from imsvd.datasets.splits import TEST_NAMES, Parts, open_split
from imsvd.datasets.stream import is_remote, is_shard_folder, open_stream
from imsvd.datasets.tar_archive import open_tars
from imsvd.datasets.zip_archive import open_zip
from imsvd.errors import InputError

DATASET_NAMES = ("shapes", *NAMED)
_SHAPES = re.compile(r"shapes(?::(?P<count>\d+))?(?:@(?P<size>\d+))?")


def open_source(data: str | Path, split: Split = "train") -> ImageSource:
    """Open a dataset by name, folder or file.

    - "cifar10", "cifar100", "stl10", "stl10-unlabeled": downloaded once.
    - "shapes": drawn on demand; "shapes:5000" has 5,000 training images, "shapes@64" is 64 px.
    - a folder with train/ and test/ (or val/, valid/, validation/), as ImageNet has: `split`
      picks one. Of several test folders, the first with labels.
    - any other folder of images: all of it is for training.
    - a .zip or .tar, read in place, with the same rules for what is inside.
    - a .parquet or .arrow file, or a folder that Hugging Face `datasets` saved.
    - a .txt or .lst file that lists images, one path a line.
    - several .tar, .parquet or .arrow files: their folder, "folder/*.tar", "s-{000..127}.tar";
      names that begin with train, test or val tell the splits.
    - a folder of litdata's shards, or "s3://…", "gs://…", "r2://…", "azure://…": streamed.

    A name wins over a folder so called; write "./shapes" for the folder. Whatever cannot be
    opened raises `InputError`.
    """
    if isinstance(data, str):
        if _SHAPES.fullmatch(data):
            return _open_shapes(data, split)
        if data in NAMED:
            return NAMED[data](split)
        if is_remote(data):
            return open_stream(data, split)
    root = Path(data).expanduser()
    if not _exists(root) and is_pattern(str(data)):
        return _open_files(expand(str(data)), split)
    # A bare word that is no path may be a misspelled name; Path("") would be the current folder.
    if isinstance(data, str) and (not data or ("/" not in data and not _exists(root))):
        raise InputError(_unknown(data))
    if _is_file(root):
        return _open_files([root], split)
    require_folder(root)
    return _open_folder(root, split)


def _open_shapes(name: str, split: Split) -> ImageSource:
    match = _SHAPES.fullmatch(name)
    assert match is not None
    count, size = match["count"], match["size"]
    if count is not None and int(count) == 0:
        raise InputError(f"'{name}' asks for no images; write for example shapes:5000")
    if size is not None and int(size) < MIN_SIZE:
        raise InputError(f"'{name}' asks for images of {size} px; shapes needs {MIN_SIZE} or more")
    return ShapesSource(
        split,
        # The test images stay the same however many are trained on, so that scores compare.
        count=int(count) if count is not None and split == "train" else None,
        size=int(size) if size is not None else 32,
    )


def _open_one_zip(files: Sequence[Path], split: Split) -> ImageSource:
    if len(files) > 1:
        raise InputError(
            f"{files[0]} is one of {len(files)} zip archives; give one, or unpack them into a folder"
        )
    return open_zip(files[0], split)


def _open_one_list(files: Sequence[Path], split: Split) -> ImageSource:
    if len(files) > 1:
        raise InputError(f"{files[0]} is one of {len(files)} lists; join them into one")
    return open_list(files, split)


def _refuse_compressed(files: Sequence[Path], _split: Split) -> ImageSource:
    raise InputError(
        f"{files[0]} is compressed as a whole, so that no image in it can be read without all "
        f"before it; unpack it and give the folder, or give a plain tar"
    )


_CONTAINERS: dict[str, Callable[[Sequence[Path], Split], ImageSource]] = {
    ".tar": open_tars,
    ".parquet": open_parquet,
    ".arrow": open_arrow,
    ".zip": _open_one_zip,
    **dict.fromkeys((".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst"), _refuse_compressed),
}
_OPENERS = {**_CONTAINERS, ".txt": _open_one_list, ".lst": _open_one_list}


def _open_files(files: list[Path], split: Split) -> ImageSource:
    kinds = sorted({path.suffix.lower() for path in files})
    if len(kinds) > 1:
        raise InputError(f"{files[0]} comes with files of other kinds ({', '.join(kinds)})")
    if kinds[0] not in _OPENERS or not _is_file(files[0]):
        raise InputError(
            f"{files[0]} is a file; give the folder that holds the images, or a .zip, .tar, "
            f".parquet, .arrow, .txt or .lst file"
        )
    return _OPENERS[kinds[0]](files, split)


def _open_folder(root: Path, split: Split) -> ImageSource:
    if not os.access(root, os.R_OK | os.X_OK):
        raise InputError(f"the folder {root} cannot be read (no permission)")
    if is_saved_dataset(root):
        return open_saved_dataset(root, split)
    if is_shard_folder(root):
        return open_stream(str(root), split)
    try:
        return open_split(
            split,
            _parts_of_folder(root),
            ImageFolderSource,
            f"{root} has no test images: give a folder with train/ and test/ (or val/) in it",
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
    """The archives or tables in a folder and its sub-folders, all of the kind that comes first."""
    found: dict[str, list[Path]] = {}
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        kind = path.suffix.lower()
        if kind in _CONTAINERS and not is_hidden(path.name) and path.is_file():
            found.setdefault(kind, []).append(path)
    return next((found[kind] for kind in _CONTAINERS if kind in found), [])


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or no possible name
        return False


def _is_file(path: Path) -> bool:
    return _exists(path) and not path.is_dir()


def _holds_nothing_but(root: Path, name: str) -> bool:
    """Whether `name` is the only visible entry; else it may be a class, such as trains."""
    return [entry.name for entry in root.iterdir() if not entry.name.startswith(".")] == [name]


def _unknown(data: str) -> str:
    near = difflib.get_close_matches(data.lower(), DATASET_NAMES, n=1, cutoff=0.6)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    names = ", ".join(DATASET_NAMES)
    return f"'{data}' is neither a folder or file nor a built-in dataset ({names}){suggestion}"


def absolute(data: str | Path) -> str:
    """Return a folder's full path, so that it is found from anywhere; names stay as they are."""
    path = Path(data).expanduser()
    # A name wins over a folder so called, as it does where the data are opened.
    named = isinstance(data, str) and re.split("[:@]", data)[0] in DATASET_NAMES
    return str(path.resolve()) if path.exists() and not named else str(data)
