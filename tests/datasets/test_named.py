from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets

from imsvd.datasets.named import NAMED, data_folder, open_cifar10, open_stl10_unlabeled
from imsvd.errors import InputError


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
