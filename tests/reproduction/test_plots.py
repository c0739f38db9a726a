"""What a plot shows side by side."""

from pathlib import Path
from typing import Any

from PIL import Image

from imsvd.reproduction.plots import draw_result, make_panels


def cell(row: str, column: str, measure: str, mean: float | None = 1.0) -> dict[str, Any]:
    runs = [{"seed": 0, "value": mean}, {"seed": 1, "value": mean}]
    return {
        "row": row,
        "column": column,
        "measure": measure,
        "paper_measure": measure,
        "setting": "",
        "paper": 2.0,
        "mean": mean,
        "sd": None if mean is None else 0.1,
        "runs": runs,
    }


def test_a_measure_lies_over_its_columns_if_it_has_several_and_else_over_the_rows() -> None:
    accuracies = [cell(row, column, "%") for row in ("a", "b") for column in ("1", "2")]
    hours = [cell("hours", column, "hours") for column in ("1", "2")]
    first, second = make_panels([*accuracies, *hours])
    assert (first.places, list(first.series)) == (["1", "2"], ["a", "b"])
    assert (second.places, list(second.series)) == (["1", "2"], ["hours"])
    (panel,) = make_panels([cell(method, "20", "kNN-20") for method in ("a", "b", "c")])
    assert (panel.places, list(panel.series)) == (["a", "b", "c"], ["20"])
    assert [found["row"] for found in panel.series["20"]] == ["a", "b", "c"]


def test_numbers_are_in_their_order_whatever_the_rows_have() -> None:
    cells = [cell("a", "100", "%"), cell("a", "400", "%"), cell("b", "300", "%")]
    (panel,) = make_panels([*cells, cell("b", "100", "%")])
    assert panel.places == ["100", "300", "400"]
    assert [found["column"] for found in panel.series["b"]] == ["100", "300"]


def test_values_that_are_not_there_leave_gaps(tmp_path: Path) -> None:
    cells = [cell("a", "1", "%"), cell("a", "2", "%", None), cell("b", "1", "%", None)]
    path = tmp_path / "plot.png"
    draw_result(cells, "number", path)
    assert Image.open(path).width > 300
