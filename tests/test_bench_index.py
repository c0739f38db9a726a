import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from imsvd.bench import index as bench
from imsvd.datasets import ImageFolderSource, index_cache
from imsvd.errors import InputError


def test_a_folder_is_opened_twice_and_the_second_time_from_its_kept_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []

    def watched(key: str) -> index_cache.Arrays | None:
        loaded.append(index_cache.load_listing(key) is not None)
        return index_cache.load_listing(key)

    monkeypatch.setattr("imsvd.datasets.folder.load_listing", watched)
    monkeypatch.setenv("IMSVD_DATA", str(tmp_path / "mine"))
    console = Console(record=True, width=120)
    rows = bench.run(1500, 2, console, tmp_path / "deep" / "index")
    assert loaded == [False, True] * 2
    assert os.environ["IMSVD_DATA"] == str(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    assert [row.contender for row in rows] == list(bench.CONTENDERS)
    assert rows[0].times_ours_first == rows[0].times_ours_again == 1
    assert all(row.first > 0 and row.again > 0 for row in rows)
    assert "Opening a folder of 1,500 images" in console.export_text()
    content = json.loads((tmp_path / "deep" / "index.json").read_text())
    assert [row["images"] for row in content["rows"]] == [1500, 1500]
    assert "| imsvd | " in (tmp_path / "deep" / "index.md").read_text()


def test_medians_and_ratios_are_taken_over_the_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {
        "imsvd": iter([(1.0, 0.1), (9.0, 0.9), (2.0, 0.2)]),
        "torchvision ImageFolder": iter([(4.0, 4.0), (3.0, 3.0), (99.0, 99.0)]),
    }
    monkeypatch.setattr(bench, "_SETTLING_SECONDS", 0)
    monkeypatch.setattr(bench, "_measure", lambda name, _: bench.Measurement(*next(seconds[name])))
    ours, other = bench.run(100, 3, Console(quiet=True))
    assert (ours.first, ours.again) == (2.0, 0.2)
    assert (other.first, other.again) == (4.0, 4.0)
    assert other.times_ours_first == 2.0
    assert other.times_ours_again == pytest.approx(20.0)


def test_the_folder_made_holds_as_many_readable_images_as_asked(tmp_path: Path) -> None:
    bench.make_folder(tmp_path / "images", 230)
    source = ImageFolderSource(tmp_path / "images")
    assert len(source) == 230
    assert len(source.classes) == bench.CLASSES
    assert source.read(229).shape == (3, 8, 8)


@pytest.mark.parametrize(("images", "repeats"), [(99, 1), (200, 0)])
def test_too_few_images_or_repeats_are_refused(images: int, repeats: int) -> None:
    with pytest.raises(InputError, match="images must be at least 100"):
        bench.run(images, repeats)
