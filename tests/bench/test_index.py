from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from imsvd.bench import comparison
from imsvd.bench import index as bench
from imsvd.bench.index import CONTENDERS, draw_codes
from tests.index.made_up import made_up_index, rows

UNITS = (4, 32, 8, 16, 5, 6)


def test_drawn_codes_keep_the_distribution_of_every_variable() -> None:
    real = rows(400, units=UNITS).codes
    real[:, 0] = np.where(real[:, 0] < 3, 1, 0)
    codes = draw_codes(real, 6000, 15)
    assert codes.shape == (6000, 15)
    for variable in (0, 6, 12):
        assert abs((codes[:, variable] == 1).mean() - (real[:, 0] == 1).mean()) < 0.03
    changed = (codes[1::100] != codes[:-1:100]).sum(1)
    assert changed.max() <= 4  # three of the copy, and perhaps its original was drawn upon
    assert (codes[2:90] != codes[1:89]).sum(1).min() > 3


def test_all_are_asked_and_ours_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        comparison, "measure_in_child", lambda benchmark, case: benchmark.measure(case)
    )
    index = made_up_index(tmp_path / "a.index", rows(300, units=UNITS), units=UNITS)
    console = Console(record=True, width=200)
    found = bench.run(index.path, 4000, 64, 1, console, tmp_path / "index")
    assert [row["contender"] for row in found] == list(CONTENDERS)
    ours = found[0]
    assert {"find_ms", "query_ms", "like_ms", "near_seconds", "add_ms", "near_mib"} <= ours.keys()
    assert ours["bytes"] <= 150
    assert "4,000 images of 64 variables" in console.export_text()
    assert "| faiss IndexBinaryFlat | " in (tmp_path / "index.md").read_text()
