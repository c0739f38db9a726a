"""From what the user calls the data to a source of images."""

import difflib
import re
from pathlib import Path

from imsvd.datasets.folder import ImageFolderSource, require_folder
from imsvd.datasets.named import NAMED, Split
from imsvd.datasets.shapes import MIN_SIZE, ShapesSource
from imsvd.datasets.source import ImageSource
from imsvd.errors import InputError

TEST_FOLDERS = ("test", "val", "valid", "validation")
DATASET_NAMES = ("shapes", *NAMED)
_SHAPES = re.compile(r"shapes(?::(?P<count>\d+))?(?:@(?P<size>\d+))?")


def open_source(data: str | Path, split: Split = "train") -> ImageSource:
    """Open a dataset by name or by folder.

    - "cifar10", "cifar100", "stl10", "stl10-unlabelled": downloaded once.
    - "shapes": drawn on demand; "shapes:5000" has 5,000 training images, "shapes@64" is 64 px.
    - a folder with train/ and test/ (or val/, valid/, validation/), as ImageNet has: `split`
      picks one. Of several test folders, the first with labels.
    - any other folder: all of it is for training.

    A name wins over a folder so called; write "./shapes" for the folder. Whatever cannot be
    opened raises `InputError`.
    """
    if isinstance(data, str):
        if _SHAPES.fullmatch(data):
            return _open_shapes(data, split)
        if data in NAMED:
            return NAMED[data](split)
    root = Path(data).expanduser()
    # A bare word that is no folder may be a misspelt name; Path("") would be the current folder.
    if isinstance(data, str) and (not data or ("/" not in data and not _is_folder(root))):
        raise InputError(_unknown(data))
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


def _open_folder(root: Path, split: Split) -> ImageSource:
    tests = [root / name for name in TEST_FOLDERS if (root / name).is_dir()]
    train = root / "train"
    if not train.is_dir() or not (tests or _holds_nothing_but(root, "train")):
        tests, train = [], root
    if split == "train":
        return ImageFolderSource(train)
    if not tests:
        ImageFolderSource(train)  # a missing or empty folder is the more basic complaint
        raise InputError(
            f"{root} has no test images: give a folder with train/ and test/ (or val/) in it"
        )
    # Labels are numbered as in train/, also where a test folder lacks a class.
    classes = ImageFolderSource(train).classes or None
    candidates = (_open_test(folder, classes) for folder in tests)
    first = next(candidates)
    if first.labels is not None or classes is None:
        return first
    return next((other for other in candidates if other.labels is not None), first)


def _open_test(folder: Path, classes: tuple[str, ...] | None) -> ImageFolderSource:
    return ImageFolderSource(folder, classes)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name too long
        return False


def _holds_nothing_but(root: Path, name: str) -> bool:
    """Whether `name` is the only visible entry; else it may be a class, such as trains."""
    return [entry.name for entry in root.iterdir() if not entry.name.startswith(".")] == [name]


def _unknown(data: str) -> str:
    near = difflib.get_close_matches(data.lower(), DATASET_NAMES, n=1, cutoff=0.6)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    names = ", ".join(DATASET_NAMES)
    return f"'{data}' is neither a folder nor a built-in dataset ({names}){suggestion}"
