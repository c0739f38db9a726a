from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets

from imsvd.datasets.named import (
    NAMED,
    data_folder,
    open_cifar10,
    open_places205,
    open_stl10_unlabeled,
)
from imsvd.errors import InputError
from tests.datasets.places import NAMES, OFFICIAL, write_places


class FakeCifar:
    classes = ("cat", "dog")

    def __init__(self, root: str, train: bool, download: bool) -> None:
        print("Files already downloaded and verified")  # noqa: T201 - as torchvision does
        assert download
        self.root = root
        self.targets = [0, 1, 1] if train else [1]
        shape = (len(self.targets), 32, 32, 3)
        self.data = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)


class FakeStl:
    classes = ("cat", "dog")

    def __init__(self, root: str, split: str, download: bool) -> None:
        self.labels = np.array([255, 255] if split == "unlabeled" else [1, 0], dtype=np.uint8)
        self.data = np.zeros((2, 3, 96, 96), dtype=np.uint8)


@pytest.fixture(autouse=True)
def data_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMSVD_DATA", str(tmp_path / "data"))


def test_cifar_images_labels_and_classes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", FakeCifar)
    source = open_cifar10("train")
    assert len(source) == 3
    assert source.labels is not None
    assert source.labels.tolist() == [0, 1, 1]
    assert source.classes == ("cat", "dog")
    expected = FakeCifar("", True, True).data[1]
    assert (source.read(1).permute(1, 2, 0).numpy() == expected).all()
    assert source.size(1) == (32, 32)
    assert source.identity(2) == "cifar10/train/2"
    assert source.fingerprint() != open_cifar10("test").fingerprint()
    assert capsys.readouterr().out == "Files already downloaded and verified\n"  # the line above


def test_stl10_unlabeled_trains_without_and_tests_with_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torchvision.datasets, "STL10", FakeStl)
    assert open_stl10_unlabeled("train").labels is None
    test = open_stl10_unlabeled("test")
    assert test.labels is not None
    assert test.labels.tolist() == [1, 0]
    assert test.read(0).shape == (3, 96, 96)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("error", [URLError("no route"), RuntimeError("not found or corrupted")])
def test_offline_is_one_sentence_with_a_remedy(
    name: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**options: Any) -> None:
        raise error

    for class_name in ("CIFAR10", "CIFAR100", "STL10"):
        monkeypatch.setattr(torchvision.datasets, class_name, fail)
    with pytest.raises(InputError) as caught:
        NAMED[name]("train")
    message = str(caught.value)
    assert str(tmp_path / "data") in message
    assert message.startswith(("CIFAR-10", "CIFAR-100", "STL-10"))
    assert ".tar.gz" in message
    assert "IMSVD_DATA" in message
    assert "\n" not in message


def test_the_cache_folder_is_below_home_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMSVD_DATA")
    assert data_folder() == Path.home() / ".cache" / "imsvd"


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
