import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from imsvd.datasets import open_source
from imsvd.datasets.drawn.drawing import SHAPES
from imsvd.datasets.drawn.masks import bounding_box
from imsvd.datasets.drawn.scene_files import write_scenes
from imsvd.datasets.drawn.scenes import draw_scene
from imsvd.errors import InputError
from tests.pretraining.tiny import CommandLine


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("coco") / "scenes", images=40, size=64)


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voc") / "scenes"
    return write_scenes(folder, images=40, size=64, layout="voc") / "VOCdevkit" / "VOC2007"


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_pycocotools_finds_every_object_with_its_mask(coco: Path) -> None:
    kinds = set()
    for name, split, count in (("train", "train", 40), ("val", "test", 20)):
        found = COCO(coco / "annotations" / f"instances_{name}.json")
        assert len(found.imgs) == count
        assert [entry["name"] for entry in found.loadCats(found.getCatIds())] == list(SHAPES)
        for index, image_id in enumerate(found.getImgIds()):
            scene = draw_scene(split, index, 64)
            annotations = found.loadAnns(found.getAnnIds(image_id))
            for entry, item in zip(annotations, scene.objects, strict=True):
                assert (found.annToMask(entry).astype(bool) == item.mask).all()
                assert entry["category_id"] == item.category + 1
                assert entry["area"] == item.mask.sum()
                assert entry["iscrowd"] == item.crowd
                box = bounding_box(item.mask)
                x, y, width, height = entry["bbox"]
                assert (x, y, x + width, y + height) == box
                kinds.add((item.crowd, type(entry["segmentation"])))
    assert kinds == {(False, list), (False, dict), (True, dict)}


def test_pictures_are_the_scenes_and_ids_are_unique(coco: Path) -> None:
    ids = []
    for name, split in (("train", "train"), ("val", "test")):
        content = json.loads((coco / "annotations" / f"instances_{name}.json").read_text())
        ids += [entry["id"] for entry in content["images"]]
        first = content["images"][0]
        pixels = np.asarray(Image.open(coco / name / first["file_name"])).transpose(2, 0, 1)
        drawn = draw_scene(split, 0, 64).image
        assert np.abs(pixels.astype(int) - drawn).mean() < 8
    assert ids == list(range(1, 61))


def test_the_folder_can_be_trained_on(coco: Path) -> None:
    assert len(open_source(coco, "train")) == 40
    assert len(open_source(coco, "test")) == 20


def test_voc_lists_agree_with_the_annotations(voc: Path) -> None:
    lists = voc / "ImageSets" / "Main"
    values = []
    for split, count in (("trainval", 40), ("test", 20), ("train", 20), ("val", 20)):
        identifiers = (lists / f"{split}.txt").read_text().split()
        assert len(identifiers) == count
        for name in SHAPES:
            lines = [line.split() for line in (lists / f"{name}_{split}.txt").open()]
            assert [line[0] for line in lines] == identifiers
            for identifier, value in lines:
                objects = Xml.parse(voc / "Annotations" / f"{identifier}.xml").iter("object")
                flags = [e.findtext("difficult") for e in objects if e.findtext("name") == name]
                expected = "-1" if not flags else "1" if "0" in flags else "0"
                assert value == expected
                values.append(value)
    assert set(values) == {"1", "0", "-1"}


def test_voc_boxes_count_from_one(voc: Path) -> None:
    root = Xml.parse(voc / "Annotations" / "000001.xml").getroot()
    assert root.findtext("filename") == "000001.jpg"
    item = draw_scene("train", 0, 64).objects[0]
    corners = [int(root.findtext(f"object/bndbox/{name}") or 0) for name in ("xmin", "ymin")]
    corners += [int(root.findtext(f"object/bndbox/{name}") or 0) for name in ("xmax", "ymax")]
    rows, columns = np.nonzero(item.mask)
    assert corners == [columns.min() + 1, rows.min() + 1, columns.max() + 1, rows.max() + 1]


def test_an_interrupted_command_is_completed(tmp_path: Path) -> None:
    whole = files(write_scenes(tmp_path / "whole", images=8, size=64))
    for index in (0, 1):
        root = write_scenes(tmp_path / f"again{index}", images=8, size=64)
        description = json.loads((root / "scenes.json").read_text())
        (root / "scenes.json").write_text(json.dumps(description | {"complete": False}))
        (root / "train" / "000000000003.jpg").write_bytes(b"torn")
        (root / "annotations" / "instances_val.json").unlink()
        write_scenes(root, images=8, size=64)
        assert files(root) == whole


def test_a_complete_folder_is_left_alone(tmp_path: Path) -> None:
    root = write_scenes(tmp_path / "scenes", images=8, size=64)
    times = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    write_scenes(root, images=8, size=64)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == times


def test_bad_requests_are_one_sentence(command: CommandLine, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    command.refuses(["scenes", str(mine)], "not an empty folder", "new folder")
    command.refuses(["scenes", str(mine / "notes.txt")], "not an empty folder")
    new = str(tmp_path / "new")
    command.refuses(["scenes", new, "--size", "32"], "size must be 64 or more for scenes, not 32")
    command.refuses(["scenes", new, "--images", "0"], "images must be 8 or more for scenes, not 0")
    command.refuses(["scenes", new, "--seed=-1"], "seed must be 0 or more")
    command.refuses(["scenes", new, "--format", "yolo"], "unknown format 'yolo'", "coco or voc")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
    assert command(["scenes", new, "--images", "8", "--size", "64"]) == 0
    assert "8 + 4 scenes" in command.out
    command.refuses(["scenes", new, "--images", "9", "--size", "64"], "images=8, not 9")
    (tmp_path / "new" / "scenes.json").write_text("{")
    command.refuses(["scenes", new, "--images", "8", "--size", "64"], "is damaged")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="could not be written"):
        write_scenes(tmp_path / "file" / "below", images=8, size=64)
