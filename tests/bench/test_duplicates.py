import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from imsvd.bench import duplicates as bench
from imsvd.bench.duplicates import KINDS, best_limit, pairs_within, plant, score
from imsvd.datasets import open_source
from imsvd.errors import InputError

PLANTED = {(0, 4): "flip", (1, 5): "crop", (2, 6): "flip"}


def test_scores_count_pairs_and_are_right_by_hand() -> None:
    found = score([(0, 4), (1, 5), (3, 5), (0, 1)], PLANTED)
    assert found["all"] == pytest.approx([50, 200 / 3, 400 / 7])
    assert found["flip"] == pytest.approx([100, 50, 200 / 3])
    assert found["crop"] == pytest.approx([50, 100, 200 / 3])
    assert score([], PLANTED)["all"] == [100, 0, 0]


def test_the_best_limit_takes_all_pairs_of_equal_distance() -> None:
    distances = np.full((7, 7), 9)
    for number, pair in enumerate(PLANTED):
        distances[pair] = number
    distances[0, 1] = 1  # cannot be told from the second copy
    distances[3, 5] = distances[2, 5] = distances[0, 5] = 2
    assert best_limit(distances, PLANTED) == 1
    assert set(pairs_within(distances, 1)) == {(0, 4), (1, 5), (0, 1)}
    distances[0, 1] = distances[3, 5] = distances[2, 5] = distances[0, 5] = 9
    assert best_limit(distances, PLANTED) == 2


def test_copies_are_edited_as_their_kind_says(tmp_path: Path) -> None:
    planted = plant(open_source("shapes:9"), tmp_path, 6, 1)
    assert len(planted.files) == 15
    assert list(planted.pairs.values()) == list(KINDS)
    pictures = {}
    for (original, copy), kind in planted.pairs.items():
        pixels = [
            np.asarray(Image.open(planted.files[number]).convert("RGB"), dtype=float)
            for number in (original, copy)
        ]
        pictures[kind] = pixels
        assert pixels[0].shape != pixels[1].shape or np.abs(pixels[0] - pixels[1]).mean() > 0.5
    before, after = pictures["flip"]
    assert np.abs(before[:, ::-1] - after).mean() < np.abs(before - after).mean()
    assert pictures["crop to 90 %"][1].shape == (29, 29, 3)
    assert pictures["resize to half"][1].shape == (16, 16, 3)
    before, after = pictures["brightness ±30 %"]
    assert not 0.8 < after.mean() / before.mean() < 1.15
    with pytest.raises(InputError, match="choose 1 to 9"):
        plant(open_source("shapes:9"), tmp_path, 10, 0)


def test_a_table_of_all_ways_is_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def brightness(path: Path) -> np.ndarray:
        return np.asarray(Image.open(path).convert("L").resize((8, 8))).ravel() > 100

    monkeypatch.setattr(bench, "hash_functions", lambda: {"a hash": brightness})
    out = tmp_path / "duplicates"
    rows = bench.run(trained, "shapes:20", 6, 0, Console(quiet=True), out)
    labels = [row["label"] for row in rows]
    cosine = "cosine of all pairs of features"
    assert labels == [
        "imsvd duplicates",
        f"{cosine}, our rule",
        f"{cosine}, best",
        "a hash",
        "a hash, best",
    ]
    scores = {row["label"]: row["scores"]["all"] for row in rows}
    assert scores[f"{cosine}, best"][2] >= scores[f"{cosine}, our rule"][2]
    assert scores["a hash, best"][2] >= scores["a hash"][2]
    assert json.loads(out.with_suffix(".json").read_text())["rows"] == rows
    assert "## Recall by kind, %" in out.with_suffix(".md").read_text()


def test_hashes_of_libraries_have_64_bits(tmp_path: Path) -> None:
    pytest.importorskip("imagehash")
    Image.linear_gradient("L").convert("RGB").save(tmp_path / "a.png")
    for function in bench.hash_functions().values():
        assert function(tmp_path / "a.png").shape == (64,)
