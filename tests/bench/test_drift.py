import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from imsvd.bench import drift as bench
from imsvd.bench.drift import DriftSettings, blurred, mmd_p_value, reddened
from imsvd.errors import InputError


def test_mmd_holds_its_level_and_finds_a_shift() -> None:
    random = np.random.default_rng(0)
    draws = [random.normal(size=(2, 20, 5)).astype(np.float32) for _ in range(100)]
    p_values = [mmd_p_value(draw[0], draw[1], 59, seed) for seed, draw in enumerate(draws)]
    assert 3 <= sum(p <= 0.1 for p in p_values) <= 18
    moved = draws[0][1] + np.float32(1.5)
    assert mmd_p_value(draws[0][0], moved, 59, 0) == pytest.approx(1 / 60)


def test_shifts_do_what_they_say() -> None:
    image = torch.randint(0, 200, (3, 16, 16), generator=torch.Generator().manual_seed(0))
    image = image.to(torch.uint8)
    assert blurred(1.0)(image).float().std() < 0.6 * image.float().std()
    red, green, blue = reddened(0.1)(image).float() - image.float()
    assert red.mean() > 5
    assert not green.any()
    assert blue.mean() < -5


def test_a_table_of_alarms_is_written(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "drift"
    settings = DriftSettings(90, (15,), 4, 3, 2.0, 0.4)
    console = Console(record=True, width=140)
    rows = bench.run(trained, "shapes", settings, console, out)
    assert [(row["shift"], row["draws"]) for row in rows] == [
        ("none", 4),
        ("class", 3),
        ("blur", 3),
        ("cast", 3),
    ]
    assert "15 images in each set" in console.export_text()
    assert json.loads(out.with_suffix(".json").read_text())["rows"] == rows
    assert "| one class missing | 3 |" in out.with_suffix(".md").read_text()


def test_sets_larger_than_a_third_are_refused(trained: Path) -> None:
    with pytest.raises(InputError, match="too few for sets of 50"):
        bench.run(trained, "shapes", DriftSettings(120, (50,)), Console(quiet=True))
