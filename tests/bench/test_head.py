"""The benchmark of heads: a real epoch, a file that is gone afterwards, bad sizes as sentences."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from imsvd.bench import head
from imsvd.bench.comparison import Numbers
from tests.pretraining.tiny import CommandLine

QUIET = Console(quiet=True)


def test_an_epoch_is_trained_on_every_kind_of_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "imsvd.bench.comparison.measure_in_child", lambda benchmark, case: benchmark.measure(case)
    )
    rows = head.run(
        1500, 8, 2, 1, QUIET, tmp_path / "out" / "head.md", in_memory=1200, folder=tmp_path
    )
    assert [row["contender"] for row in rows] == ["memory", "cold", "warm"]
    assert [row["images"] for row in rows] == [1200, 1500, 1500]
    assert all(row["images_per_second"] > 0 and row["peak_mib"] > 0 for row in rows)
    memory, cold, _ = rows
    assert memory["times_memory"] == 1
    ratio = (cold["seconds"] / 1500) / (memory["seconds"] / 1200)
    assert cold["times_memory"] == pytest.approx(ratio)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(json.loads((tmp_path / "out" / "head.json").read_text())["rows"]) == 3


def test_views_of_an_image_are_alike(tmp_path: Path) -> None:
    head.write_features(tmp_path / "a.npy", (1100, 3, 16), QUIET)
    found = np.load(tmp_path / "a.npy").astype(np.float32)
    assert found.shape == (1100, 3, 16)
    assert np.corrcoef(found[:, 0].ravel(), found[:, 1].ravel())[0, 1] > 0.8
    assert abs(np.corrcoef(found[:-1, 0].ravel(), found[1:, 0].ravel())[0, 1]) < 0.1
    assert found[-1].std() > 0.5


def test_too_little_disk_and_too_few_images_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 10**9))
    words = ["bench", "head", "--folder", str(tmp_path), "--images"]
    command.refuses([*words, "1000000"], "7.7 GB of features do not fit in", "1.0 GB left")
    command.refuses([*words, "1000"], "at least 1,024 images")
    assert not list(tmp_path.iterdir())


def test_a_failure_removes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Numbers:
        raise KeyboardInterrupt

    monkeypatch.setattr("imsvd.bench.comparison.measure_in_child", fail)
    with pytest.raises(KeyboardInterrupt):
        head.run(1100, 8, 2, 1, QUIET, in_memory=1100, folder=tmp_path)
    assert not list(tmp_path.iterdir())
