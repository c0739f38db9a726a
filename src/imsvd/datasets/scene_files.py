"""Scenes written to disk, in COCO's layout or in Pascal VOC's.

`scenes.json` says what a folder holds and whether it is whole. It is written first and last, so
that an interrupted command can be repeated and nobody's folder is written into by mistake.
"""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

from imsvd.datasets.scene_annotations import (
    COCO_CATEGORIES,
    coco_annotations,
    coco_image,
    voc_labels,
    voc_lists,
    voc_xml,
)
from imsvd.datasets.scenes import MIN_SIZE, Scene, draw_scene
from imsvd.errors import InputError
from imsvd.progress import progress_bar

_DESCRIPTION = "scenes.json"
_JPEG_QUALITY = 92
_MIN_IMAGES = 8

# Draws that many scenes of a split, one after the other.
_Drawn = Callable[[str, int], Iterator[Scene]]


def write_scenes(
    folder: str | Path,
    *,
    images: int = 500,
    size: int = 128,
    seed: int = 0,
    layout: str = "coco",
    console: Console | None = None,
) -> Path:
    """Write scenes into `folder` and return the folder to give to an evaluation.

    Repeating a command that was interrupted completes its folder; repeating one that was not
    changes nothing. A folder that holds anything else is refused.

    Args:
        folder: a new or empty folder, or one that the same call wrote to.
        images: scenes to train on; half as many are for testing.
        size: side of the pictures in pixels.
        seed: another seed gives other scenes.
        layout: "coco" for `train/`, `val/` and `annotations/instances_*.json`; "voc" for
            `VOCdevkit/VOC2007`.
        console: where to show progress.
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
        raise InputError(f"there is no format {wanted['layout']!r}; choose coco or voc.")
    for name, least in (("images", _MIN_IMAGES), ("size", MIN_SIZE), ("seed", 0)):
        if wanted[name] < least:
            raise InputError(f"scenes need {name} of {least} or more, not {wanted[name]}.")


def _claim(root: Path, wanted: dict[str, Any]) -> bool:
    """Whether `root` already holds all that is `wanted`; else make it ours, or refuse it."""
    description = root / _DESCRIPTION
    if description.is_file():
        found = _read_description(description)
        for name, value in wanted.items():
            if found.get(name) != value:
                raise InputError(
                    f"{root} holds scenes with {name}={found.get(name)!r}, not {value!r}; "
                    "repeat that setting, or give another folder."
                )
        return bool(found.get("complete"))
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(
            f"{root} exists and holds something that is not scenes; give a new folder."
        )
    _write(description, _json(wanted | {"complete": False}))
    return False


def _read_description(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged; delete its folder, or give another one.")
    return found


def _write_coco(root: Path, images: int, drawn: _Drawn) -> None:
    next_annotation = 1
    next_image = 1
    for name, split, count in (("train", "train", images), ("val", "test", images // 2)):
        content: dict[str, Any] = {
            "info": {"description": f"imsvd scenes, {name}", "version": "1"},
            "licenses": [],
            "images": [],
            "annotations": [],
            "categories": list(COCO_CATEGORIES),
        }
        for scene in drawn(split, count):
            file_name = f"{next_image:012d}.jpg"
            _write(root / name / file_name, _jpeg(scene))
            content["images"].append(coco_image(next_image, file_name, scene))
            found = coco_annotations(next_image, scene, next_annotation)
            content["annotations"] += found
            next_annotation += len(found)
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
            _write(base / "Annotations" / f"{identifier}.xml", voc_xml(file_name, scene))
            labels[identifier] = voc_labels(scene)
            next_image += 1
        for part, rows in _voc_parts(split, count).items():
            for name, text in voc_lists(dict(list(labels.items())[rows])).items():
                _write(base / "ImageSets" / "Main" / f"{name}{part}.txt", text.encode())


def _voc_parts(split: str, count: int) -> dict[str, slice]:
    """The lists VOC has for a split of ours, and which of its images they name."""
    if split == "test":
        return {"test": slice(None)}
    half = count // 2
    return {"trainval": slice(None), "train": slice(half), "val": slice(half, None)}


_WRITERS: dict[str, Callable[[Path, int, _Drawn], None]] = {"coco": _write_coco, "voc": _write_voc}


def _jpeg(scene: Scene) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(scene.picture.transpose(1, 2, 0)).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror}.") from error
