"""Images and multi-label targets in the layout of Pascal VOC's development kit.

    VOC2007/JPEGImages/000005.jpg
    VOC2007/ImageSets/Main/trainval.txt            all images of a split, one identifier a line
    VOC2007/ImageSets/Main/chair_trainval.txt      "000005  1": 1 there, -1 not, 0 difficult only
    VOC2007/Annotations/000005.xml                 used where the lists by class are absent

http://host.robots.ox.ac.uk/pascal/VOC/voc2007/. Everything is checked when it is opened; only
whether an image can be decoded shows when it is read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

import torch
from torch import Tensor

from imsvd.datasets.encoded import EncodedSource, read_file
from imsvd.datasets.folder import require_folder
from imsvd.datasets.names import is_image_name
from imsvd.datasets.source import hash_listing
from imsvd.errors import InputError

SPLITS = ("trainval", "test")
PRESENT, DIFFICULT, ABSENT = 1, 0, -1
_PLACES = ("", "VOC2007", "VOCdevkit/VOC2007")

# Label of every image by identifier, for every class.
_Labels = dict[str, dict[str, int]]


class VOCSource(EncodedSource):
    """The images of one split, in the order of its list.

    Attributes:
        targets: (n, classes) int8: 1 present, -1 absent, 0 present only in objects that are
            marked difficult, which counts neither way.
        class_names: names of the columns of `targets`.
    """

    def __init__(self, split: str, files: Sequence[Path], labels: _Labels) -> None:
        self.split = split
        self.class_names = tuple(labels)
        self._files = tuple(files)
        rows = [[labels[name][path.stem] for name in labels] for path in files]
        self.targets: Tensor = torch.tensor(rows, dtype=torch.int8)

    def __len__(self) -> int:
        return len(self._files)

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file."""
        identity = self.identity(index)
        return read_file(self._files[index], identity)

    def identity(self, index: int) -> str:
        """The name of the file in JPEGImages."""
        self.require_index(index)
        return self._files[index].name

    def fingerprint(self) -> str:
        """Hash of names, classes and targets."""
        names = [path.name.encode() for path in self._files]
        classes = [name.encode() for name in self.class_names]
        return hash_listing([*names, *classes, self.targets.numpy().tobytes()])


class VOCData(NamedTuple):
    """Both splits, with the same classes in the same order."""

    trainval: VOCSource
    test: VOCSource


def open_voc(root: str | Path) -> VOCData:
    """Open a VOC2007 folder, or the folder around it or around its VOCdevkit.

    Raises:
        InputError: one sentence about the first thing that is not as VOC has it.
    """
    base = _find_base(Path(root).expanduser())
    images = _list_images(base / "JPEGImages")
    identifiers = {split: _read_split(base, split) for split in SPLITS}
    for split, names in identifiers.items():
        for name in names:
            if name not in images:
                raise InputError(
                    f"{_list_path(base, split)} lists {name}, but {base / 'JPEGImages'} holds no "
                    f"{name}.jpg; add the image or take it off the list."
                )
    labels = _read_labels(base, identifiers)
    sources = (
        VOCSource(split, [images[name] for name in names], labels[split])
        for split, names in identifiers.items()
    )
    return VOCData(*sources)


def _find_base(root: Path) -> Path:
    require_folder(root)
    for place in _PLACES:
        if (root / place / "JPEGImages").is_dir() and (root / place / "ImageSets").is_dir():
            return root / place
    raise InputError(
        f"{root} is not in VOC's layout: it holds no VOCdevkit/VOC2007 with JPEGImages and "
        "ImageSets/Main in it; give the folder that VOC's archives were unpacked in."
    )


def _list_images(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.iterdir()) if is_image_name(path.name)}


def _list_path(base: Path, split: str, class_name: str | None = None) -> Path:
    prefix = "" if class_name is None else f"{class_name}_"
    return base / "ImageSets" / "Main" / f"{prefix}{split}.txt"


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise InputError(
            f"there is no {path}; VOC's archives have it, and `imsvd scenes --format voc` writes it."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    return [line for line in lines if line.strip()]


def _read_split(base: Path, split: str) -> list[str]:
    path = _list_path(base, split)
    names = [line.strip() for line in _read_lines(path)]
    if not names:
        raise InputError(f"{path} lists no images; write one identifier a line.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} lists {twice} more than once; name every image once.")
    return names


def _read_labels(base: Path, identifiers: dict[str, list[str]]) -> dict[str, _Labels]:
    """The labels of both splits from the lists by class or, without those, from the XML files."""
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
            f"no file in {base / 'Annotations'} names an object; nothing can be learned."
        )
    return {
        split: {
            name: {image: present.get(name, ABSENT) for image, present in images.items()}
            for name in classes
        }
        for split, images in found.items()
    }


def _read_annotation(path: Path) -> dict[str, int]:
    """The classes in an image: present, or only in difficult objects."""
    try:
        root = Xml.parse(path).getroot()
    except FileNotFoundError:
        raise InputError(
            f"there is no {path}, and no lists by class in ImageSets/Main; one of both must say "
            "what is in the image."
        ) from None
    except (OSError, Xml.ParseError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    labels: dict[str, int] = {}
    for entry in root.iter("object"):
        name = (entry.findtext("name") or "").strip()
        difficult = (entry.findtext("difficult") or "0").strip()
        if not name or difficult not in ("0", "1"):
            raise InputError(
                f"{path} has an object with name {name!r} and difficult {difficult!r}; a class's "
                "name and 0 or 1 are needed."
            )
        label = DIFFICULT if difficult == "1" else PRESENT
        labels[name] = max(label, labels.get(name, DIFFICULT))
    return labels
