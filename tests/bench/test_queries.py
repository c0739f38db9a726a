import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from imsvd.bench.queries import groups, measure, name_units, random_half, run
from imsvd.errors import InputError
from imsvd.index import Index
from tests.index.made_up import made_up_index, rows

UNITS = (4, 2, 3)


def colored(folder: Path, wrong: int = 0) -> Index:
    """Variable 0 tells 1 and 2 from 3 and 4, variable 1 tells 1 and 3 from 2 and 4, variable 2 nothing."""
    random = np.random.default_rng(0)
    colors = np.repeat([1, 2, 3, 4], 50).astype(np.uint32)
    first = np.where(colors <= 2, random.integers(0, 2, 200), random.integers(2, 4, 200))
    codes = np.stack([first, colors % 2, random.integers(0, 3, 200)], axis=1).astype(np.uint8)
    # Only images that do not name units are wrong, so that the names are right.
    naming = random_half(200)
    codes[np.setdiff1d(np.arange(200), naming)[:wrong], 1] ^= 1
    made = rows(200, units=UNITS, codes=codes)
    facets = {"color": colors, "root": made.facets["root"]}
    return made_up_index(
        folder,
        replace(made, facets=facets),
        units=UNITS,
        facets={"color": ("red", "green", "blue", "gray")},
    )


def test_groups_are_values_that_share_units() -> None:
    values = np.repeat([1, 2, 3], 20)
    units = np.array([0] * 10 + [1] * 10 + [1] * 20 + [4] * 19 + [0])
    assert groups(units, values) == {frozenset({1, 2}): (0, 1), frozenset({3}): (4,)}
    assert groups(units, values, 0.05) == {frozenset({1, 2, 3}): (0, 1, 4)}


def test_queries_are_exact_where_variables_are(tmp_path: Path) -> None:
    index = colored(tmp_path / "a.index")
    named = name_units(index.codes(), index.facet("color"))
    assert named == {
        frozenset({1, 2}): (0, (0, 1)),
        frozenset({3, 4}): (0, (2, 3)),
        frozenset({2, 4}): (1, (0,)),
        frozenset({1, 3}): (1, (1,)),
    }
    row = measure(index, "color")
    assert row == {
        "attribute": "color",
        "groups": 4,
        "queries": 8,
        "precision": 1,
        "recall": 1,
        "reached": 1,
    }


def test_wrong_codes_cost_precision_and_recall(tmp_path: Path) -> None:
    row = measure(colored(tmp_path / "a.index", wrong=4), "color")
    assert row["queries"] == 8
    assert 0.9 < row["precision"] < 1
    assert 0.9 < row["recall"] < 1


def test_a_table_is_written_and_images_without_attributes_are_refused(tmp_path: Path) -> None:
    index, out = colored(tmp_path / "a.index"), tmp_path / "queries"
    found = run(index.path, 0, Console(quiet=True), out)
    assert json.loads(out.with_suffix(".json").read_text())["rows"] == found
    assert "| color | 4 | 8 | 100.0% | 100.0% | 100.0% |" in out.with_suffix(".md").read_text()
    with pytest.raises(InputError, match="has no attributes"):
        run(made_up_index(tmp_path / "b.index", rows(5)).path)
