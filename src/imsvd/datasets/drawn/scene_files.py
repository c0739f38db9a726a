"""Scenes written to disk in the layout of COCO or Pascal VOC.

`scenes.json` records the contents of a folder and whether it is complete. It is written first and
last, so an interrupted command can be repeated and other folders are never written into.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from PIL import Image
from rich.console import Console

from imsvd.datasets.drawn.drawing import SHAPES
from imsvd.datasets.drawn.masks import bounding_box, run_lengths, segmentation
from imsvd.datasets.drawn.scenes import MIN_SIZE, Scene, SceneObject, draw_scene
from imsvd.errors import InputError
from imsvd.progress import progress_bar

_DESCRIPTION = "scenes.json"
_JPEG_QUALITY = 92
_MIN_IMAGES = 8

# Draws the given number of scenes of a split, one after another.
_Drawn = Callable[[str, int], Iterator[Scene]]

# Below these, an object is marked as difficult; VOC leaves the decision to its annotators.
_TINY_SHARE = 0.004
_HIDDEN_SHARE = 0.35

_COCO_CATEGORIES = tuple(
    {"id": number, "name": name, "supercategory": "shape"}
    for number, name in enumerate(SHAPES, start=1)
)


def write_scenes(
    folder: str | Path,
    *,
    images: int = 500,
    size: int = 128,
    seed: int = 0,
    layout: str = "coco",
    console: Console | None = None,
) -> Path:
    """Write `images` training scenes and half as many test scenes into a new or empty folder.

    Repeating an interrupted call completes the folder; repeating a finished one changes nothing.
    The layout is "coco" (`train/`, `val/` and `annotations/instances_*.json`) or "voc"
    (`VOCdevkit/VOC2007`). Returns the folder.
    """
    root = Path(folder).expanduser()
    wanted = {"layout": layout, "images": images, "size": size, "seed": seed}
    _check(wanted)
    if _claim(root, wanted):
        return root
    with progress_bar(console or Console(quiet=True)) as bar:
        task = bar.add_task("drawing scenes", total=images + images // 2)

        def drawn(split: str, count: int) -> Iterator[Scene]:
            for index in range(count):
                yield draw_scene(split, index, size, seed)
                bar.advance(task)

        _WRITERS[layout](root, images, drawn)
    _write(root / _DESCRIPTION, _json(wanted | {"complete": True}))
    return root


def _check(wanted: dict[str, Any]) -> None:
    if wanted["layout"] not in _WRITERS:
        raise InputError(f"unknown format {wanted['layout']!r}; choose coco or voc.")
    for name, least in (("images", _MIN_IMAGES), ("size", MIN_SIZE), ("seed", 0)):
        if wanted[name] < least:
            raise InputError(f"{name} must be {least} or more for scenes, not {wanted[name]}.")


def _claim(root: Path, wanted: dict[str, Any]) -> bool:
    """Return whether `root` is complete already; else claim it, or raise `InputError`."""
    description = root / _DESCRIPTION
    if description.is_file():
        try:
            found = dict(json.loads(description.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{description} is damaged; delete its folder or choose another one."
            ) from error
        for name, value in wanted.items():
            if found.get(name) != value:
                raise InputError(
                    f"{root} holds scenes with {name}={found.get(name)!r}, not {value!r}; "
                    "use the same value or another folder."
                )
        return bool(found.get("complete"))
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(f"{root} exists and is not an empty folder; choose a new folder.")
    _write(description, _json(wanted | {"complete": False}))
    return False


def _write_coco(root: Path, images: int, drawn: _Drawn) -> None:
    next_annotation = 1
    next_image = 1
    for name, split, count in (("train", "train", images), ("val", "test", images // 2)):
        content: dict[str, Any] = {
            "info": {"description": f"imsvd scenes, {name}", "version": "1"},
            "licenses": [],
            "images": [],
            "annotations": [],
            "categories": list(_COCO_CATEGORIES),
        }
        for scene in drawn(split, count):
            file_name = f"{next_image:012d}.jpg"
            _write(root / name / file_name, _jpeg(scene))
            height, width = scene.image.shape[-2:]
            content["images"].append(
                {"id": next_image, "file_name": file_name, "height": height, "width": width}
            )
            for item in scene.objects:
                content["annotations"].append(_coco_annotation(next_annotation, next_image, item))
                next_annotation += 1
            next_image += 1
        _write(root / "annotations" / f"instances_{name}.json", _json(content))


def _write_voc(root: Path, images: int, drawn: _Drawn) -> None:
    base = root / "VOCdevkit" / "VOC2007"
    next_image = 1
    for split, count in (("train", images), ("test", images // 2)):
        labels: dict[str, list[int]] = {}
        for scene in drawn(split, count):
            identifier = f"{next_image:06d}"
            file_name = f"{identifier}.jpg"
            _write(base / "JPEGImages" / file_name, _jpeg(scene))
            _write(base / "Annotations" / f"{identifier}.xml", _voc_xml(file_name, scene))
            labels[identifier] = [_voc_label(scene, number) for number in range(len(SHAPES))]
            next_image += 1
        for part, rows in _voc_parts(split, count).items():
            for name, text in _voc_lists(dict(list(labels.items())[rows])).items():
                _write(base / "ImageSets" / "Main" / f"{name}{part}.txt", text.encode())


def _voc_parts(split: str, count: int) -> dict[str, slice]:
    """Return VOC's lists for one of our splits, each with the images it names."""
    if split == "test":
        return {"test": slice(None)}
    half = count // 2
    return {"trainval": slice(None), "train": slice(half), "val": slice(half, None)}


_WRITERS: dict[str, Callable[[Path, int, _Drawn], None]] = {"coco": _write_coco, "voc": _write_voc}


def _coco_annotation(number: int, image_id: int, item: SceneObject) -> dict[str, Any]:
    box = bounding_box(item.mask)
    return {
        "id": number,
        "image_id": image_id,
        "category_id": item.category + 1,
        "bbox": [box.left, box.top, box.right - box.left, box.bottom - box.top],
        "area": int(item.mask.sum()),
        "segmentation": run_lengths(item.mask) if item.crowd else segmentation(item.mask),
        "iscrowd": int(item.crowd),
    }


def _is_difficult(item: SceneObject) -> bool:
    """Return whether VOC would mark it as difficult: tiny, mostly hidden, or a group."""
    tiny = float(item.mask.mean()) < _TINY_SHARE
    return tiny or item.visible_share < _HIDDEN_SHARE or item.crowd


def _voc_label(scene: Scene, category: int) -> int:
    """Return 1 if the class is present, 0 if only in difficult objects, -1 if absent."""
    found = [item for item in scene.objects if item.category == category]
    if not found:
        return -1
    return 0 if all(_is_difficult(item) for item in found) else 1


def _voc_xml(file_name: str, scene: Scene) -> bytes:
    """Return the annotation file of a scene; boxes count pixels from 1, both ends included."""
    height, width = scene.image.shape[-2:]
    root = Xml.Element("annotation")
    _fill(root, {"folder": "VOC2007", "filename": file_name})
    _fill(Xml.SubElement(root, "source"), {"database": "imsvd scenes"})
    _fill(Xml.SubElement(root, "size"), {"width": width, "height": height, "depth": 3})
    _fill(root, {"segmented": 0})
    for item in scene.objects:
        box = bounding_box(item.mask)
        entry = Xml.SubElement(root, "object")
        _fill(entry, {"name": SHAPES[item.category], "pose": "Unspecified"})
        _fill(entry, {"truncated": int(item.truncated), "difficult": int(_is_difficult(item))})
        corners = {"xmin": box.left + 1, "ymin": box.top + 1, "xmax": box.right, "ymax": box.bottom}
        _fill(Xml.SubElement(entry, "bndbox"), corners)
    Xml.indent(root, "\t")
    return bytes(Xml.tostring(root)) + b"\n"


def _voc_lists(labels: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return the lists of a split by file name prefix: "" for all images, "<class>_" for each class.

    `labels` holds the labels of all classes for every image identifier.
    """
    lists = {"": "".join(f"{identifier}\n" for identifier in labels)}
    for category, name in enumerate(SHAPES):
        lines = (f"{identifier} {row[category]:2d}\n" for identifier, row in labels.items())
        lists[f"{name}_"] = "".join(lines)
    return lists


def _fill(parent: Xml.Element, values: Mapping[str, str | int]) -> None:
    for name, value in values.items():
        Xml.SubElement(parent, name).text = str(value)


def _jpeg(scene: Scene) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(scene.image.transpose(1, 2, 0)).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror}.") from error
