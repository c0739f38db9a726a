from pathlib import Path

import pytest
import torch

from imsvd.datasets.drawn.shapes import ShapesSource
from imsvd.datasets.named import NAMED
from imsvd.datasets.opening import _is_pattern as is_pattern
from imsvd.datasets.opening import expand_pattern as expand
from imsvd.datasets.opening import open_source
from imsvd.datasets.sources import ArraySource
from imsvd.errors import InputError
from tests.datasets.containers import image_table, pictures, write_parquet, write_tar, write_zip
from tests.datasets.test_folders import put


def labels_of(data: Path, split: str) -> list[int] | None:
    source = open_source(data, "test" if split == "test" else "train")
    return None if source.labels is None else source.labels.tolist()


def test_shapes_by_name() -> None:
    assert (len(open_source("shapes")), len(open_source("shapes", "test"))) == (6000, 2000)
    assert len(open_source("shapes:5000")) == 5000
    source = open_source("shapes:10@64")
    assert isinstance(source, ShapesSource)
    assert source.read(0).shape == (3, 64, 64)


def test_the_test_shapes_do_not_depend_on_the_number_trained_on() -> None:
    default = open_source("shapes", "test").fingerprint()
    assert open_source("shapes:10", "test").fingerprint() == default


@pytest.mark.parametrize(("name", "phrase"), [("shapes:0", "no images"), ("shapes@8", "8 px")])
def test_impossible_shapes(name: str, phrase: str) -> None:
    with pytest.raises(InputError, match=phrase):
        open_source(name)


def test_a_plain_folder_is_for_training_only(tmp_path: Path) -> None:
    put(tmp_path, "a.png", "b.png")
    assert len(open_source(str(tmp_path))) == 2
    with pytest.raises(InputError, match=r"no test images: .* train/ and test/ \(or val/\)"):
        open_source(tmp_path, "test")


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_split_folders(tmp_path: Path, name: str) -> None:
    put(tmp_path, "train/cat/1.png", "train/dog/1.png", "train/eel/1.png")
    put(tmp_path, f"{name}/cat/9.png", f"{name}/eel/9.png")
    assert labels_of(tmp_path, "train") == [0, 1, 2]
    assert labels_of(tmp_path, "test") == [0, 2]
    assert open_source(tmp_path, "test").classes == ("cat", "dog", "eel")


def test_labeled_val_is_preferred_to_unlabeled_test(tmp_path: Path) -> None:
    put(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/1.png", "val/dog/1.png")
    assert labels_of(tmp_path, "test") == [1]


def test_unlabeled_splits(tmp_path: Path) -> None:
    put(tmp_path, "train/1.png", "train/2.png", "test/images/3.png", "val/4.png")
    assert labels_of(tmp_path, "train") is None
    assert open_source(tmp_path, "test").identity(0) == "images/3.png"


def test_a_lone_train_folder_is_the_training_data(tmp_path: Path) -> None:
    put(tmp_path, "train/cat/1.png", "train/dog/1.png")
    assert labels_of(tmp_path, "train") == [0, 1]
    with pytest.raises(InputError, match="no test images"):
        open_source(tmp_path, "test")


def test_train_may_be_a_class(tmp_path: Path) -> None:
    put(tmp_path, "bus/1.png", "car/1.png", "train/1.png")
    assert open_source(tmp_path).classes == ("bus", "car", "train")


def test_missing_folder_and_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"'CIFAR-10' is neither .*; did you mean cifar10\?"):
        open_source("CIFAR-10")
    with pytest.raises(InputError, match=r"'zzz' is neither .*built-in dataset \(shapes, [^?]*$"):
        open_source("zzz")


@pytest.mark.parametrize("data", ["", "a/" + 300 * "b", 300 * "b", "nowhere/a\0b"])
def test_impossible_paths_are_input_errors(data: str) -> None:
    with pytest.raises(InputError):
        open_source(data)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    with pytest.raises(InputError, match="is a file; give the folder"):
        open_source(str(tmp_path / "a.png"))


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_folder_is_named_as_such_for_either_split(tmp_path: Path, split: str) -> None:
    with pytest.raises(InputError, match="holds no images"):
        open_source(tmp_path, "test" if split == "test" else "train")


def test_a_name_wins_over_a_folder_so_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "shapes/a.png")
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_source("shapes"), ShapesSource)
    assert open_source("./shapes").identity(0) == "a.png"
    assert open_source(Path("shapes")).identity(0) == "a.png"


def test_named_datasets_are_opened_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ArraySource("cifar10/test", torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    monkeypatch.setitem(NAMED, "cifar10", lambda split: fake)
    assert open_source("cifar10", "test") is fake


def test_a_folder_with_images_is_a_folder_of_images(tmp_path: Path) -> None:
    write_tar(put(tmp_path, "a.png") / "backup.tar", pictures("b.png", "c.png"))
    assert len(open_source(tmp_path)) == 1
    assert len(open_source(f"{tmp_path}/*.tar")) == 2


def test_a_folder_of_archives_only(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", pictures("a.png", "b.png"))
    assert len(open_source(tmp_path)) == 2
    write_zip(tmp_path / "b.zip", pictures("c.png"))
    with pytest.raises(InputError, match=r"a\.zip is one of 2 zip archives; give one"):
        open_source(tmp_path)
    write_parquet(tmp_path / "c.parquet", image_table(pictures("d.png")))
    assert open_source(tmp_path).identity(0) == "c.parquet row 0"


def test_a_pattern_must_stand_for_files_of_one_kind(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", pictures("a.png"))
    write_tar(tmp_path / "b.tar", pictures("b.png"))
    with pytest.raises(InputError, match=r"files of other kinds \(\.tar, \.zip\)"):
        open_source(f"{tmp_path}/*")
    put(tmp_path, "c.png")
    with pytest.raises(InputError, match="is a file; give the folder"):
        open_source(f"{tmp_path}/*.png")


@pytest.mark.parametrize("name", ["a.ZIP", "[x].zip", "{1,2}.zip", "no/such/a.zip", "nowhere.zip"])
def test_names_of_files_are_taken_literally_first(tmp_path: Path, name: str) -> None:
    if "no" in name:
        with pytest.raises(InputError, match=r"no folder|neither"):
            open_source(tmp_path / name)
        return
    write_zip(tmp_path / name, pictures("a.png"))
    assert len(open_source(str(tmp_path / name))) == 1


def test_a_file_named_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zip(tmp_path / "a.zip", pictures("a.png"))
    monkeypatch.chdir(tmp_path)
    assert len(open_source("a.zip")) == 1
    with pytest.raises(InputError, match=r"'b\.zip' is neither a folder or file"):
        open_source("b.zip")


def names(pattern: str) -> list[str]:
    return [path.name for path in expand(pattern)]


def test_ranges_choices_and_stars(tmp_path: Path) -> None:
    for name in ("a-08.tar", "a-09.tar", "a-10.tar", "b-09.tar"):
        (tmp_path / name).touch()
    assert names(f"{tmp_path}/a-{{08..10}}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert names(f"{tmp_path}/{{a,b}}-09.tar") == ["a-09.tar", "b-09.tar"]
    assert names(f"{tmp_path}/{{a,b}}-0*.tar") == ["a-08.tar", "a-09.tar", "b-09.tar"]


@pytest.mark.parametrize("pattern", ["{5..3}.tar", "{0..99999999999}.tar", "x/*.tar"])
def test_what_stands_for_nothing_gets_a_sentence(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(InputError):
        expand(f"{tmp_path}/{pattern}")


@pytest.mark.parametrize(
    ("name", "expected"), [("a.tar", False), ("a*.tar", True), ("{1..2}", True)]
)
def test_what_is_a_pattern(name: str, expected: bool) -> None:
    assert is_pattern(name) is expected
