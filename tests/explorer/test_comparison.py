"""Training curves, and two runs side by side."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from imsvd.evaluation.results import append_result
from imsvd.explanations import PARTS
from imsvd.explorer import ExplainedRun, open_run
from imsvd.explorer.comparison import agreement, code_information, compare, training
from tests.explorer.conftest import Api
from tests.oracles import explorer as oracle


def test_training_curves_are_series_with_bounds(api: Api, explained: Path) -> None:
    answer = api("runs/0/training")
    records = [json.loads(line) for line in (explained / "metrics.jsonl").read_text().splitlines()]
    series = {item["name"]: item["points"] for item in answer["series"]}
    assert series["loss"] == [[record["epoch"], record["loss"]] for record in records]
    expected = [[record["epoch"], record["terms"]["invariance"]] for record in records]
    assert series["invariance"] == expected
    assert not {"epoch", "step", "bounds"} & set(series)
    bounds = records[-1]["bounds"]
    assert answer["bounds"]["loss"] == {name: values["total"] for name, values in bounds.items()}


def test_training_curves_contain_only_finite_numbers(explained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(explained, tmp_path / "run"))
    lines = ['{"epoch": 1, "loss": NaN, "lr": 0.5, "name": "x", "terms": {"a": Infinity, "b": 2}}']
    lines += ['{"epoch": 2, "loss": 1.5, "fine": true, "terms": {"b": 3}}', '{"epoch": 3, "lo']
    (run / "metrics.jsonl").write_text("\n".join(lines))
    answer = training(open_run(run))
    assert {item["name"]: item["points"] for item in answer["series"]} == {
        "lr": [[1, 0.5]],
        "b": [[1, 2], [2, 3]],
        "loss": [[2, 1.5]],
    }
    assert answer["bounds"] == {}


def test_runs_are_compared_number_by_number(
    explained: Path, explained_photographs: Path, tmp_path: Path
) -> None:
    first = Path(shutil.copytree(explained, tmp_path / "first"))
    for value in (10.0, 50.0):
        append_result(first, "knn", {"knn_20": value}, data="/somewhere/shapes", details={})
    answer = compare(open_run(first), open_run(explained_photographs))
    rows = {(row["group"], row["name"]): (row["first"], row["second"]) for row in answer["rows"]}
    assert rows["run", "explained images"] == (128, 5)
    assert rows["knn on shapes", "knn 20"] == (50.0, None)
    one_hot, nothing = rows[PARTS["joint"].title, "one hot"]
    assert isinstance(one_hot, float)
    assert nothing is None
    assert all(
        isinstance(value, float) for value in rows[PARTS["discreteness"].title, "share above 0.9"]
    )
    drawn = {PARTS[name].title for name in ("embeddings", "galleries", "grad_cam")}
    assert not {group for group, _ in rows} & drawn
    assert set(answer["training"]) == {"first", "second"}
    assert answer["agreement"]["common_images"] == 0
    assert answer["agreement"]["mutual_information"] is None
    assert answer["agreement"]["matched_units"] is None


def test_code_information_is_the_mutual_information_of_the_codes(opened: ExplainedRun) -> None:
    codes = opened.encodings.codes
    found = code_information(codes, codes[:, ::-1], (opened.units, opened.units))
    for a in range(4):
        for b in range(4):
            expected = oracle.mutual_information(codes[:, a].tolist(), codes[:, 3 - b].tolist())
            assert found[a, b] == pytest.approx(expected, abs=1e-9)


def test_images_are_matched_by_name(opened: ExplainedRun) -> None:
    every = opened.encodings
    kept = np.arange(127, 20, -3)
    fewer = every._replace(
        images=every.images[kept], codes=every.codes[kept], confidence=every.confidence[kept]
    )
    other = ExplainedRun(opened.run, opened.summary, opened.description, opened.source, fewer)
    found = agreement(opened, other)
    assert found["common_images"] == len(kept)
    information = np.array(found["mutual_information"])
    column = every.codes[kept, 2].tolist()
    assert information[2, 2] == pytest.approx(oracle.mutual_information(column, column), abs=1e-3)
    assert found["matched_units"] == {"share": 1.0, "mean_jaccard": 1.0}
    # Another unit for half of the images: every second row.
    codes = every.codes[kept].copy()
    codes[::2, 0] = (codes[::2, 0] + 1) % 4
    other = ExplainedRun(
        opened.run, opened.summary, opened.description, opened.source, fewer._replace(codes=codes)
    )
    changed = agreement(opened, other)["matched_units"]
    assert 12 / 16 <= changed["mean_jaccard"] < 1


def test_a_run_compared_with_itself_has_equal_rows(api: Api) -> None:
    answer = api("compare?first=0&second=0")
    assert answer["agreement"]["common_images"] == 128
    assert all(row["first"] == row["second"] for row in answer["rows"])
