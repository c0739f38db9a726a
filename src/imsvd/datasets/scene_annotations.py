"""What is in a scene, as COCO and as Pascal VOC write it down."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from imsvd.datasets.masks import bounding_box, run_lengths, segmentation
from imsvd.datasets.palette import SHAPES
from imsvd.datasets.scenes import Scene, SceneObject

# VOC leaves it to the annotator's eye what is too hard to be asked for.
_TINY_SHARE = 0.004
_HIDDEN_SHARE = 0.35

COCO_CATEGORIES = tuple(
    {"id": number, "name": name, "supercategory": "shape"}
    for number, name in enumerate(SHAPES, start=1)
)


def coco_image(image_id: int, file_name: str, scene: Scene) -> dict[str, Any]:
    """The entry of `images` for a scene."""
    height, width = scene.picture.shape[-2:]
    return {"id": image_id, "file_name": file_name, "height": height, "width": width}


def coco_annotations(image_id: int, scene: Scene, first_id: int) -> list[dict[str, Any]]:
    """The entries of `annotations` for a scene, numbered from `first_id`."""
    return [
        _coco_annotation(number, image_id, item)
        for number, item in enumerate(scene.objects, start=first_id)
    ]


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


def is_difficult(item: SceneObject) -> bool:
    """Whether VOC would not ask for it: tiny, mostly hidden, or a group that has no single box."""
    tiny = float(item.mask.mean()) < _TINY_SHARE
    return tiny or item.visible_share < _HIDDEN_SHARE or item.crowd


def voc_label(scene: Scene, category: int) -> int:
    """1 if the class is in the scene, 0 if only difficult objects of it are, -1 if none is."""
    found = [item for item in scene.objects if item.category == category]
    if not found:
        return -1
    return 0 if all(is_difficult(item) for item in found) else 1


def voc_labels(scene: Scene) -> list[int]:
    """`voc_label` of every class, in the order of `SHAPES`."""
    return [voc_label(scene, category) for category in range(len(SHAPES))]


def voc_xml(file_name: str, scene: Scene) -> bytes:
    """The file of `Annotations` for a scene; boxes count pixels from 1, both ends included."""
    height, width = scene.picture.shape[-2:]
    root = Xml.Element("annotation")
    _fill(root, {"folder": "VOC2007", "filename": file_name})
    _fill(Xml.SubElement(root, "source"), {"database": "imsvd scenes"})
    _fill(Xml.SubElement(root, "size"), {"width": width, "height": height, "depth": 3})
    _fill(root, {"segmented": 0})
    for item in scene.objects:
        box = bounding_box(item.mask)
        entry = Xml.SubElement(root, "object")
        _fill(entry, {"name": SHAPES[item.category], "pose": "Unspecified"})
        _fill(entry, {"truncated": int(item.truncated), "difficult": int(is_difficult(item))})
        corners = {"xmin": box.left + 1, "ymin": box.top + 1, "xmax": box.right, "ymax": box.bottom}
        _fill(Xml.SubElement(entry, "bndbox"), corners)
    Xml.indent(root, "\t")
    return bytes(Xml.tostring(root)) + b"\n"


def voc_lists(labels: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The lists of one split, by what precedes `<split>.txt`: "" for all images, "<class>_" each.

    `labels` has the `voc_labels` of every image, by its identifier.
    """
    lists = {"": "".join(f"{identifier}\n" for identifier in labels)}
    for category, name in enumerate(SHAPES):
        lines = (f"{identifier} {row[category]:2d}\n" for identifier, row in labels.items())
        lists[f"{name}_"] = "".join(lines)
    return lists


def _fill(parent: Xml.Element, values: Mapping[str, str | int]) -> None:
    for name, value in values.items():
        Xml.SubElement(parent, name).text = str(value)
