"""`benchmarks/subset.py` and `crops.py`, which make the folders that the pages there speak of."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pretraining.test_pretrain import write_images

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "subset.py"


def subset(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def count(folder: Path) -> list[int]:
    return [len(list(part.iterdir())) for part in sorted(folder.iterdir())]


@pytest.mark.slow
def test_images_of_each_class_come_as_folders_of_jpegs(tmp_path: Path) -> None:
    write_images(tmp_path / "data" / "train", 15, classes=3)
    write_images(tmp_path / "data" / "test", 6, classes=3)
    assert subset(tmp_path / "data", tmp_path / "a", "--per-class", 3).returncode == 0
    assert (count(tmp_path / "a" / "train"), count(tmp_path / "a" / "test")) == ([3] * 3, [2] * 3)
    held_out = subset(tmp_path / "data", tmp_path / "b", "--per-class", 3, "--hold-out", 2)
    assert held_out.returncode == 0
    train, test = (
        {path.read_bytes() for path in (tmp_path / "b" / part).rglob("*.jpg")}
        for part in ("train", "test")
    )
    assert (len(train), len(test), len(train & test)) == (9, 6, 0)


def test_what_cannot_be_done_is_one_sentence(tmp_path: Path) -> None:
    write_images(tmp_path / "unlabeled", 3)
    for data, phrase in (
        (tmp_path / "no", "there is no folder"),
        (tmp_path / "unlabeled", "labels"),
    ):
        refused = subset(data, tmp_path / "out", "--hold-out", 1)
        assert refused.returncode == 1
        assert phrase in refused.stderr
        assert "Traceback" not in refused.stderr
    assert "exists" in subset(tmp_path / "unlabeled", tmp_path).stderr


@pytest.mark.slow
def test_every_photograph_becomes_a_class_of_crops(tmp_path: Path) -> None:
    write_images(tmp_path / "photographs", 3)
    out = tmp_path / "crops"
    command = [
        sys.executable,
        *map(str, (SCRIPT.with_name("crops.py"), tmp_path / "photographs", out)),
    ]
    assert subprocess.run(command, check=False).returncode == 0
    assert sorted(folder.name for folder in (out / "train").iterdir()) == ["0000", "0001", "0002"]
    assert {len(list(folder.iterdir())) for folder in (out / "train").iterdir()} == {8}
    assert {len(list(folder.iterdir())) for folder in (out / "test").iterdir()} == {2}
    crops = {path.read_bytes() for path in out.rglob("*.jpg")}
    assert len(crops) == 30
