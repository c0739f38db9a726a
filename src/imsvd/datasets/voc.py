"""Images and multi-label targets in the layout of Pascal VOC's development kit.

    VOC2007/JPEGImages/000005.jpg
    VOC2007/ImageSets/Main/trainval.txt            identifiers of a split, one per line
    VOC2007/ImageSets/Main/chair_trainval.txt      "000005  1": 1 present, -1 absent, 0 difficult
    VOC2007/Annotations/000005.xml                 used if there are no lists by class

http://host.robots.ox.ac.uk/pascal/VOC/voc2007/. All lists are checked on opening; images are
decoded later.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

import torch
from torch import Tensor

from imsvd.datasets.folders import require_folder
from imsvd.datasets.layouts import is_image_name
from imsvd.datasets.sources import PathSource, hash_listing
from imsvd.errors import InputError

SPLITS = ("trainval", "test")
PRESENT, DIFFICULT, ABSENT = 1, 0, -1
_PLACES = ("", "VOC2007", "VOCdevkit/VOC2007")

_Labels = dict[str, dict[str, int]]
"""For every class, the label of every image by identifier."""


class VOCSource(PathSource):
    """The images of one split, in the order of its list.

    Attributes:
        targets: (n, classes) int8: 1 present, -1 absent, 0 present only in objects marked
            difficult, which counts neither way.
        class_names: names of the columns of `targets`.
    """

    def __init__(self, split: str, folder: Path, files: Sequence[str], labels: _Labels) -> None:
        super().__init__(folder, files)
        self.split = split
        self.class_names = tuple(labels)
        rows = [[labels[name][Path(file).stem] for name in labels] for file in files]
        self.targets: Tensor = torch.tensor(rows, dtype=torch.int8)

    def fingerprint(self) -> str:
        """Return a hash of names, classes and targets."""
        classes = [name.encode() for name in self.class_names]
        return hash_listing([self._names.blob, *classes, self.targets.numpy().tobytes()])


class VOCData(NamedTuple):
    """Both splits, with the same classes in the same order."""

    trainval: VOCSource
    test: VOCSource


def open_voc(root: str | Path) -> VOCData:
    """Open a VOC2007 folder, or the folder that contains it or its VOCdevkit."""
    base = _find_base(Path(root).expanduser())
    images = _list_images(base / "JPEGImages")
    identifiers = {split: _read_split(base, split) for split in SPLITS}
    for split, names in identifiers.items():
        for name in names:
            if name not in images:
                raise InputError(
                    f"{_list_path(base, split)} lists {name}, but {base / 'JPEGImages'} holds no "
                    f"{name}.jpg; add the image or remove it from the list."
                )
    labels = _read_labels(base, identifiers)
    sources = (
        VOCSource(split, base / "JPEGImages", [images[name] for name in names], labels[split])
        for split, names in identifiers.items()
    )
    return VOCData(*sources)


def _find_base(root: Path) -> Path:
    require_folder(root)
    for place in _PLACES:
        if (root / place / "JPEGImages").is_dir() and (root / place / "ImageSets").is_dir():
            return root / place
    raise InputError(
        f"{root} does not have the layout of VOC: it holds no VOCdevkit/VOC2007 with JPEGImages and "
        "ImageSets/Main; give the folder into which VOC's archives were unpacked."
    )


def _list_images(folder: Path) -> dict[str, str]:
    """Return file names by identifier."""
    return {path.stem: path.name for path in sorted(folder.iterdir()) if is_image_name(path.name)}


def _list_path(base: Path, split: str, class_name: str | None = None) -> Path:
    prefix = "" if class_name is None else f"{class_name}_"
    return base / "ImageSets" / "Main" / f"{prefix}{split}.txt"


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise InputError(
            f"there is no {path}; unpack VOC's archives again, or run `imsvd scenes --format voc`."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    return [line for line in lines if line.strip()]


def _read_split(base: Path, split: str) -> list[str]:
    path = _list_path(base, split)
    names = [line.strip() for line in _read_lines(path)]
    if not names:
        raise InputError(f"{path} lists no images; write one identifier per line.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} lists {twice} more than once; list every image once.")
    return names


def _read_labels(base: Path, identifiers: dict[str, list[str]]) -> dict[str, _Labels]:
    """Read the labels of both splits from the lists by class, otherwise from the XML files."""
    suffix = "_trainval.txt"
    lists = sorted((base / "ImageSets" / "Main").glob(f"*{suffix}"))
    if not lists:
        return _labels_from_annotations(base, identifiers)
    classes = [path.name.removesuffix(suffix) for path in lists]
    return {
        split: {name: _read_class_list(_list_path(base, split, name), names) for name in classes}
        for split, names in identifiers.items()
    }


def _read_class_list(path: Path, identifiers: Sequence[str]) -> dict[str, int]:
    labels: dict[str, int] = {}
    for line in _read_lines(path):
        name, *rest = line.split()
        if rest not in (["1"], ["0"], ["-1"]):
            raise InputError(
                f"{path} says {line.strip()!r}; write an identifier and 1 (present), 0 (difficult) "
                "or -1 (absent)."
            )
        labels[name] = int(rest[0])
    for name in identifiers:
        if name not in labels:
            raise InputError(f"{path} has no label for {name}; every image of the split needs one.")
    return labels


def _labels_from_annotations(base: Path, identifiers: dict[str, list[str]]) -> dict[str, _Labels]:
    found = {
        split: {name: _read_annotation(base / "Annotations" / f"{name}.xml") for name in names}
        for split, names in identifiers.items()
    }
    classes = sorted(
        {name for split in found.values() for image in split.values() for name in image}
    )
    if not classes:
        raise InputError(
            f"no file in {base / 'Annotations'} names an object; unpack VOC's archives again."
        )
    return {
        split: {
            name: {image: present.get(name, ABSENT) for image, present in images.items()}
            for name in classes
        }
        for split, images in found.items()
    }


def _read_annotation(path: Path) -> dict[str, int]:
    """Return the classes in an image: present, or only in difficult objects."""
    try:
        root = Xml.parse(path).getroot()
    except FileNotFoundError:
        raise InputError(
            f"there is neither {path} nor a list by class in ImageSets/Main; add either to label the "
            "image."
        ) from None
    except (OSError, Xml.ParseError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    labels: dict[str, int] = {}
    for entry in root.iter("object"):
        name = (entry.findtext("name") or "").strip()
        difficult = (entry.findtext("difficult") or "0").strip()
        if not name or difficult not in ("0", "1"):
            raise InputError(
                f"{path} has an object with name {name!r} and difficult {difficult!r}; give the name "
                "of a class and 0 or 1."
            )
        label = DIFFICULT if difficult == "1" else PRESENT
        labels[name] = max(label, labels.get(name, DIFFICULT))
    return labels
