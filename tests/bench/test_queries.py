import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from imsvd.bench.queries import name_units, naming_and_measured, recovered, run
from imsvd.errors import InputError
from imsvd.index import Index
from tests.index.made_up import made_up_index, rows

UNITS = (4, 2, 3)
FACETS = {"color": ("red", "blue"), "size": ("small", "large"), "shape": ("ring", "cross", "star")}


def drawn(folder: Path, wrong: int = 0) -> Index:
    """Variable 0 tells the color by two units each, variable 1 the size, and none the shape."""
    random = np.random.default_rng(0)
    color, size = (random.integers(1, 3, 200).astype(np.uint32) for _ in range(2))
    codes = np.stack(
        [2 * (color - 1) + random.integers(0, 2, 200), size - 1, random.integers(0, 3, 200)], axis=1
    ).astype(np.uint8)
    # Only images that do not name units are wrong, so that the names are right.
    measured = np.sort(np.random.default_rng(0).permutation(200)[100:])
    codes[measured[:wrong], 1] ^= 1
    made = rows(200, units=UNITS, codes=codes)
    shape = random.integers(1, 4, 200).astype(np.uint32)
    facets = {"color": color, "size": size, "shape": shape, "root": made.facets["root"]}
    return made_up_index(folder, replace(made, facets=facets), units=UNITS, facets=FACETS)


def test_units_are_named_by_the_variable_that_tells_most() -> None:
    values = np.repeat([1, 2], 20)
    good = np.array([0] * 10 + [2] * 10 + [1] * 20)
    worse = np.array([0] * 19 + [1] * 21)
    assert name_units(np.stack([worse, good], axis=1), values) == {1: (1, (0, 2)), 2: (1, (1,))}
    assert name_units(worse[:, None], values) == {1: (0, (0,)), 2: (0, (1,))}


def test_a_variable_that_is_often_wrong_or_lacks_a_value_names_nothing() -> None:
    values = np.repeat([1, 2], 20)
    assert name_units(np.array([0] * 15 + [1] * 25)[:, None], values) == {}
    assert name_units(np.zeros((40, 1), dtype=int), np.repeat([1, 2], [38, 2])) == {}


def test_queries_are_exact_where_variables_are(tmp_path: Path) -> None:
    index = drawn(tmp_path / "a.index")
    naming, measured = naming_and_measured(index, 0)
    assert set(naming) | set(measured) == set(range(200))
    assert set(recovered(index, naming)) == {"color", "size"}
    found = run(index.path, 0, Console(quiet=True))
    assert [(row["attribute"], row["without"]) for row in found] == [
        ("color", "size"),
        ("size", "color"),
    ]
    for row in found:
        assert (row["queries"], row["precision"], row["recall"], row["lowest_recall"]) == (
            4,
            1,
            1,
            1,
        )


def test_wrong_codes_cost_precision_and_recall(tmp_path: Path) -> None:
    for row in run(drawn(tmp_path / "a.index", wrong=6).path, 0, Console(quiet=True)):
        assert 0.85 < row["precision"] < 1
        assert 0.85 < row["recall"] < 1
        assert row["lowest_precision"] < row["precision"]


def test_a_table_is_written_and_images_without_attributes_are_refused(tmp_path: Path) -> None:
    index, out = drawn(tmp_path / "a.index"), tmp_path / "queries"
    found = run(index.path, 0, Console(quiet=True), out)
    assert json.loads(out.with_suffix(".json").read_text())["rows"] == found
    text = out.with_suffix(".md").read_text()
    assert "| color | size | 4 | 100.0% | 100.0% | 100.0% | 100.0% |" in text
    assert "| color | red | 0.0, 0.1 |" in text
    with pytest.raises(InputError, match="has no attributes"):
        run(made_up_index(tmp_path / "b.index", rows(5)).path)


def test_too_few_recovered_attributes_are_refused(tmp_path: Path) -> None:
    made = rows(40)
    facets = {"color": np.repeat([1, 2], 20).astype(np.uint32), "root": made.facets["root"]}
    index = made_up_index(
        tmp_path / "a.index", replace(made, facets=facets), facets={"color": ("red", "blue")}
    )
    with pytest.raises(InputError, match="a query over two attributes needs two"):
        run(index.path)
