from pathlib import Path

import pytest

from imsvd.datasets.places205 import open_places205
from imsvd.errors import InputError
from tests.datasets.places import NAMES, OFFICIAL, write_places


@pytest.mark.parametrize(
    ("images", "lists"),
    [("", ""), (OFFICIAL, "trainvalsplit_places205"), ("images256", "")],
    ids=["one folder", "as unpacked", "images256"],
)
def test_the_layouts(images: str, lists: str, tmp_path: Path) -> None:
    train, test = open_places205(write_places(tmp_path, images=images, lists=lists))
    assert (len(train), len(test)) == (12, 6)
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.classes == test.classes == ("0", "1", "2")
    assert train.identity(5) == f"{NAMES[1]}/train_1.jpg"
    assert train.read(5).shape == (3, 40, 40)
    assert train.size(5) == (40, 40)


def test_the_fingerprint_follows_names_and_labels(tmp_path: Path) -> None:
    base = write_places(tmp_path / "one")
    first = open_places205(base).train.fingerprint()
    assert open_places205(write_places(tmp_path / "two")).train.fingerprint() == first
    path = base / "train_places205.csv"
    path.write_text(path.read_text().replace(" 1\n", " 2\n", 1))
    assert open_places205(base).train.fingerprint() != first


def test_commas_tabs_and_spaces_in_names_are_read(tmp_path: Path) -> None:
    base = write_places(tmp_path)
    (base / "a/abbey/train_0.jpg").rename(base / "a/abbey/train 0.jpg")
    lines = ["a/abbey/train 0.jpg 0", "", "b/bar/train_0.jpg,1", "c/castle/train_0.jpg\t2"]
    (base / "train_places205.csv").write_text("\r\n".join(lines))
    train = open_places205(base).train
    assert [train.identity(place) for place in range(3)] == [
        "a/abbey/train 0.jpg",
        "b/bar/train_0.jpg",
        "c/castle/train_0.jpg",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("a/abbey/none.jpg 0", "train_places205.csv lists a/abbey/none.jpg, which is not in"),
        ("z/zoo/none.jpg 0", "lists z/zoo/none.jpg, which is not in"),
        ("a/abbey/train_0.jpg 205", "line 13, has the label 205; labels are 0 to 204"),
        ("a/abbey/train_0.jpg -1", "line 13, has the label -1"),
        ("a/abbey/train_0.jpg", "line 13, is not a path and a label"),
    ],
)
def test_bad_lines_are_named(line: str, sentence: str, tmp_path: Path) -> None:
    base = write_places(tmp_path)
    with (base / "train_places205.csv").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(InputError, match=sentence):
        open_places205(base)


def test_other_layouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        open_places205(tmp_path / "none")
    with pytest.raises(InputError, match=r"it holds no train_places205.csv"):
        open_places205(tmp_path)
    base = write_places(tmp_path / "data")
    (base / "val_places205.csv").write_text("\n")
    with pytest.raises(InputError, match=r"val_places205.csv lists no images"):
        open_places205(base)
    (base / "val_places205.csv").unlink()
    with pytest.raises(InputError, match=r"it holds no val_places205.csv"):
        open_places205(base)
