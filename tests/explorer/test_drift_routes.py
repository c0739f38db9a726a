"""Drift over HTTP: two queries of one index compared."""

from urllib.parse import quote

import numpy as np

from imsvd.index import Index
from tests.explorer.conftest import Api
from tests.explorer.test_duplicate_routes import ready


def test_the_units_that_moved_are_named_with_images_that_show_them(
    ask: Api, planted: Index
) -> None:
    # The test images come first, so that places in a set and positions in the index differ.
    found = ready(ask, "drift?first=0&second=0&a=split:test&b=split:train")
    assert found["drifted"] is True
    assert found["verdict"].startswith("The sets differ")
    assert "variable 0" in found["verdict"]
    assert found["images"] == [60, 60]
    assert found["moved"][0]["name"] == "0"
    assert found["moved"][0]["moved"] == 1
    units = {unit["name"]: unit for unit in found["moved"][0]["units"]}
    assert (units["0.1"]["before"], units["0.1"]["after"]) == (0, 1)
    assert units["0.1"]["gained"] is True
    assert units["0.2"]["gained"] is False
    assert len(units["0.1"]["examples"]) == len(units["0.2"]["examples"]) == 12
    codes = planted.codes()
    assert (codes[units["0.1"]["examples"], 0] == 1).all()
    assert (codes[units["0.2"]["examples"], 0] == 2).all()
    assert (np.array(found["typical"][0]) >= 60).all()
    assert (np.array(found["typical"][1]) < 60).all()
    assert len(found["variables"]) == 8


def test_looks_are_compared_if_wanted(ask: Api) -> None:
    found = ready(ask, "drift?first=0&second=0&a=split:test&b=split:train&looks=true")
    assert {row["family"] for row in found["variables"]} == {"codes", "appearance"}
    assert found["note"] == ""
    # Every other image is twice as wide as high, in both sets.
    shape = next(row for row in found["variables"] if row["variable"] == "shape")
    assert shape["moved"] < 0.1


def test_sets_that_cannot_be_compared_are_refused(ask: Api) -> None:
    assert "both sets are the same" in ask.error("drift?first=0&second=0", 409)
    refused = ask(f"drift?first=0&second=0&a={quote('0.1 & (')}&b=0.2", 400)
    assert refused["position"] == 7
    assert "no index 7" in ask.error("drift?first=0&second=7", 404)
    ask.error("drift?first=0&second=..%2f", 422)
    for sets, sentence in (
        ("a=split:train&b=0.1", "images in common"),
        (f"a={quote('0.1 & 0.2')}&b=0.1", "finds 0 images"),
    ):
        while (answer := ask.client.get(f"/api/drift?first=0&second=0&{sets}")).status_code == 200:
            pass
        assert answer.status_code == 409
        assert sentence in answer.json()["error"]
