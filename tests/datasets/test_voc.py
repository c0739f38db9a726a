import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from imsvd.datasets.voc import open_voc
from imsvd.errors import InputError

XML = "<annotation>{}</annotation>"
OBJECT = "<object><name>{}</name><difficult>{}</difficult></object>"
OBJECTS = {
    "01": [("cat", 0), ("dog", 1)],
    "02": [("cat", 1), ("cat", 0)],
    "03": [("cat", 1)],
    "04": [],
    "05": [("dog", 0)],
}
TARGETS = {"01": [1, 0], "02": [1, -1], "03": [0, -1], "04": [-1, -1], "05": [-1, 1]}
SPLITS = {"trainval": ["03", "01", "02"], "test": ["05", "04"]}


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    base = tmp_path / "data" / "VOCdevkit" / "VOC2007"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (base / name).mkdir(parents=True)
    for name, objects in OBJECTS.items():
        Image.new("RGB", (12, 10), (int(name) * 40, 0, 0)).save(base / f"JPEGImages/{name}.jpg")
        text = XML.format("".join(OBJECT.format(*item) for item in objects))
        (base / f"Annotations/{name}.xml").write_text(text)
    for split, names in SPLITS.items():
        (base / f"ImageSets/Main/{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for column, kind in enumerate(("cat", "dog")):
            lines = (f"{name} {TARGETS[name][column]:2d}\n" for name in names)
            (base / f"ImageSets/Main/{kind}_{split}.txt").write_text("".join(lines))
    return base


def remove_class_lists(base: Path) -> None:
    for path in (base / "ImageSets" / "Main").glob("*_*.txt"):
        path.unlink()


@pytest.mark.parametrize("up", [0, 1, 2])
@pytest.mark.parametrize("by_class", [True, False])
def test_targets_from_lists_and_from_annotations(up: int, by_class: bool, devkit: Path) -> None:
    if not by_class:
        remove_class_lists(devkit)
    root = [devkit, devkit.parent, devkit.parent.parent][up]
    data = open_voc(root)
    for split, source in zip(SPLITS, data, strict=True):
        assert source.class_names == ("cat", "dog")
        assert source.targets.tolist() == [TARGETS[name] for name in SPLITS[split]]
        assert [source.identity(index) for index in range(len(source))] == [
            f"{name}.jpg" for name in SPLITS[split]
        ]
    assert data.test.read(0).shape == (3, 10, 12)
    assert abs(int(data.test.read(0)[0, 0, 0]) - 200) < 4


def test_annotations_are_not_needed_beside_lists(devkit: Path) -> None:
    shutil.rmtree(devkit / "Annotations")
    assert len(open_voc(devkit).trainval) == 3


def test_gray_images_become_rgb(devkit: Path) -> None:
    Image.new("L", (12, 10), 77).save(devkit / "JPEGImages/01.jpg")
    assert open_voc(devkit).trainval.read(1).shape == (3, 10, 12)


def test_the_fingerprint_knows_names_and_labels(devkit: Path) -> None:
    before = open_voc(devkit)
    assert before.trainval.fingerprint() != before.test.fingerprint()
    assert open_voc(devkit).trainval.fingerprint() == before.trainval.fingerprint()
    (devkit / "ImageSets/Main/cat_trainval.txt").write_text("01 1\n02 1\n03 1\n")
    assert open_voc(devkit).trainval.fingerprint() != before.trainval.fingerprint()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda base: (base / name).write_text(text)


def unlisted(name: str, text: str) -> Callable[[Path], object]:
    """Without the lists by class, so that annotations count."""

    def change(base: Path) -> None:
        remove_class_lists(base)
        (base / name).write_text(text)

    return change


def without_annotation(base: Path) -> None:
    remove_class_lists(base)
    (base / "Annotations/02.xml").unlink()


def without_objects(base: Path) -> None:
    remove_class_lists(base)
    for path in (base / "Annotations").iterdir():
        path.write_text(XML.format(""))


MAIN = "ImageSets/Main"


@pytest.mark.parametrize(
    ("spoil", "phrases"),
    [
        (
            lambda base: shutil.rmtree(base / "JPEGImages"),
            ["does not have the layout of VOC", "unpacked"],
        ),
        (lambda base: shutil.rmtree(base / "ImageSets"), ["does not have the layout of VOC"]),
        (lambda base: (base / MAIN / "test.txt").unlink(), ["there is no", "test.txt"]),
        (lambda base: (base / MAIN / "dog_test.txt").unlink(), ["there is no", "dog_test.txt"]),
        (write(f"{MAIN}/test.txt", "\n"), ["test.txt lists no images"]),
        (write(f"{MAIN}/test.txt", "04\n04\n"), ["lists 04 more than once"]),
        (
            write(f"{MAIN}/cat_test.txt", "04 -1\n05 2\n"),
            ["cat_test.txt says '05 2'", "-1 (absent)"],
        ),
        (write(f"{MAIN}/cat_test.txt", "04 -1\n05\n"), ["cat_test.txt says '05'"]),
        (write(f"{MAIN}/cat_test.txt", "04 -1\n"), ["cat_test.txt has no label for 05"]),
        (lambda base: (base / "JPEGImages/05.jpg").unlink(), ["test.txt lists 05", "no 05.jpg"]),
        (without_annotation, ["there is neither", "02.xml"]),
        (without_objects, ["names an object"]),
        (unlisted("Annotations/02.xml", "<annotation>"), ["02.xml cannot be read"]),
        (unlisted("Annotations/02.xml", XML.format(OBJECT.format("cat", 2))), ["difficult '2'"]),
        (unlisted("Annotations/02.xml", XML.format(OBJECT.format("", 0))), ["name ''"]),
    ],
)
def test_every_mistake_is_one_sentence(
    spoil: Callable[[Path], object], phrases: list[str], devkit: Path
) -> None:
    spoil(devkit)
    with pytest.raises(InputError) as error:
        open_voc(devkit.parent.parent)
    for phrase in phrases:
        assert phrase in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        open_voc(tmp_path / "none")
