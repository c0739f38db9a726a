import json
from pathlib import Path

import pytest
from rich.console import Console

from imsvd.bench import comparison
from imsvd.bench import index as bench
from imsvd.bench.comparison import Numbers
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
    monkeypatch.setattr(
        comparison, "measure_in_child", lambda benchmark, case: benchmark.measure(case)
    )
    console = Console(record=True, width=120)
    rows = bench.run(1500, 2, console, tmp_path / "deep" / "index")
    assert loaded == [False, False, True] * 2  # the small folder, the folder and the folder again
    assert not (tmp_path / "mine").exists()
    assert [row["contender"] for row in rows] == list(bench.CONTENDERS)
    assert rows[0]["times_ours_first"] == rows[0]["times_ours_again"] == 1
    assert all(row["first"] > 0 and row["again"] > 0 for row in rows)
    assert "Opening a folder of 1,500 images" in console.export_text()
    content = json.loads((tmp_path / "deep" / "index.json").read_text())
    assert [row["images"] for row in content["rows"]] == [1500, 1500]
    assert "| imsvd | " in (tmp_path / "deep" / "index.md").read_text()


def test_children_keep_listings_out_of_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMSVD_DATA", str(tmp_path / "mine"))
    bench.make_folder(tmp_path / "images", 120)
    case = bench.IndexCase("imsvd", 120, str(tmp_path / "images"))
    found: Numbers = comparison.measure_in_child(bench.BENCHMARK, case)
    assert found.keys() == {"first", "again"}
    assert not (tmp_path / "mine").exists()


def test_the_folder_made_holds_as_many_readable_images_as_asked(tmp_path: Path) -> None:
    bench.make_folder(tmp_path / "images", 230)
    source = ImageFolderSource(tmp_path / "images")
    assert len(source) == 230
    assert len(source.classes) == bench.CLASSES
    assert source.read(229).shape == (3, 8, 8)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(InputError, match="images = 99: choose at least 100"):
        bench.run(99)
