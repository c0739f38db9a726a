"""Rows, columns, the choice of the learning rate, and the files of a comparison."""

import csv
import io
import json
from pathlib import Path

import pytest

from imsvd.grid.comparison import (
    COLUMNS,
    ComparedRun,
    Comparison,
    ComparisonRow,
    choose,
    columns_of,
    csv_text,
    header,
    markdown,
    notes,
    spread,
    write_comparison,
)
from imsvd.grid.jobs import Outcome
from tests.grid import made_up
from tests.pretraining import tiny

BY_NAME = {column.name: column for column in COLUMNS}


def row(lr: float, *outcomes: Outcome | None, failure: str = "") -> ComparisonRow:
    runs = (
        ComparedRun("imsvd", lr, seed, "runs/x", out, "" if out else failure)
        for seed, out in enumerate(outcomes)
    )
    return ComparisonRow("imsvd", lr, tuple(runs))


BEST_ON_TEST = row(0.1, made_up.scored(90, 50), made_up.scored(91, 52))
BEST_ON_HOLD_OUT = row(0.2, made_up.scored(40, 60), made_up.scored(42, 45))
FAILED_ONCE = row(0.3, made_up.scored(80, 99), None, failure="the loss is no longer finite.")
COMPARISON = Comparison(tiny.config(), [BEST_ON_TEST, BEST_ON_HOLD_OUT, FAILED_ONCE])


def test_the_deviation_is_the_sample_deviation() -> None:
    # 50, 52, 57: mean 53; squares 9 + 1 + 16 = 26; 26 / 2 = 13
    found = spread([50.0, None, 52.0, 57.0])
    assert found is not None
    assert found.mean == 53
    assert found.deviation is not None
    assert abs(found.deviation - 13**0.5) < 1e-12
    assert found.number == 3


def test_one_value_has_no_deviation_and_none_no_mean() -> None:
    assert spread([50.0]) == (50.0, None, 1)
    assert spread([None]) is None
    assert BY_NAME["knn_20"].cell(spread([50.0])) == "50.0"
    assert BY_NAME["knn_20"].cell(None) == "–"
    assert BY_NAME["knn_20"].cell(spread([50.0, 52.0])) == "51.0 ± 1.4"
    assert BY_NAME["head_parameters"].cell(spread([1e6, 3e6])) == "2,000,000"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.25, "0.25"), (36.0, "36.0"), (160.4, "160"), (1234.0, "1,234")]
)
def test_seconds_have_no_exponent(seconds: float, shown: str) -> None:
    assert BY_NAME["seconds_per_epoch"].cell(spread([seconds])) == shown


def test_a_row_counts_only_what_is_finished() -> None:
    shown = dict(
        zip(header(COLUMNS), row(0.003, made_up.scored(40, 1), None).cells(COLUMNS), strict=True)
    )
    assert shown["seeds"] == "1 of 2"
    assert shown["kNN-20, %"] == "40.0"
    assert shown["kNN-200, %"] == "–"
    assert shown["peak MiB"] == "100"


def test_markdown_csv_and_json_agree() -> None:
    whole = row(0.003, made_up.scored(40, 1), made_up.scored(44, 2), made_up.scored(45, 3))
    lines = [run.values() for run in whole.runs]
    from_csv = [float(line["knn_20"]) for line in csv.DictReader(io.StringIO(csv_text(lines)))]
    found = spread(from_csv)
    assert found is not None
    assert whole.values()["knn_20"] == {"mean": found.mean, "sd": found.deviation}
    table = [line.strip("| ").split(" | ") for line in markdown([whole]).splitlines()]
    assert [len(line) for line in table] == [len(header(columns_of([whole])))] * 3
    shown = dict(zip(table[0], table[2], strict=True))
    assert shown["kNN-20, %"] == BY_NAME["knn_20"].cell(found) == "43.0 ± 2.6"
    assert shown["hold-out, %"] == "2.0 ± 1.0"


def test_attributes_have_columns_only_where_there_are_some() -> None:
    plain = row(0.003, made_up.scored(40, 1))
    score = {"attributes_recovered": 3.0, "mean_best_nmi": 0.25}
    told = row(0.003, made_up.outcome(metrics=score))
    assert "attributes recovered" not in header(columns_of([plain]))
    columns = columns_of([plain, told])
    shown = dict(zip(header(columns), told.cells(columns), strict=True))
    assert (shown["attributes recovered"], shown["best NMI"]) == ("3.0", "0.25")
    assert dict(zip(header(columns), plain.cells(columns), strict=True))["best NMI"] == "–"


def test_what_is_not_known_stays_empty_in_csv() -> None:
    run = ComparedRun("imsvd", 0.003, 0, "runs/x", failure="it broke, badly")
    (line,) = csv.DictReader(io.StringIO(csv_text([run.values()])))
    assert line["knn_20"] == line["training_seconds"] == ""
    assert line["status"] == "failed"
    assert line["failure"] == "it broke, badly"


def test_the_learning_rate_is_chosen_on_held_out_images_not_on_test_images() -> None:
    assert choose([BEST_ON_TEST, BEST_ON_HOLD_OUT]) is BEST_ON_HOLD_OUT
    assert choose([BEST_ON_HOLD_OUT, BEST_ON_TEST]) is BEST_ON_HOLD_OUT


def test_a_learning_rate_that_failed_gives_way() -> None:
    assert choose(COMPARISON.every) is BEST_ON_HOLD_OUT
    assert choose([row(0.1, None, None)]).lr == 0.1


def test_while_runs_are_missing_the_seeds_that_all_have_decide() -> None:
    ahead = row(0.1, made_up.scored(50, 40), made_up.scored(50, 90))
    better = row(0.2, made_up.scored(50, 41), None)
    assert choose([ahead, better]) is better
    assert choose([ahead, better, row(0.3, None, None)]) is better
    assert choose([row(0.3, None, None), row(0.4, None, None)]).lr == 0.3
    assert choose([FAILED_ONCE, row(0.4, None, None)]) is FAILED_ONCE
    # No seed in common: all there is.
    assert choose([row(0.1, None, made_up.scored(50, 42)), better]).lr == 0.1


def test_the_page_names_the_code_and_machines_of_the_runs(tmp_path: Path) -> None:
    other = made_up.outcome(commit="def5678", cpu="Zuse, 1 cores", device="Some GPU")
    comparison = Comparison(tiny.config(), [row(0.1, made_up.outcome(), other)])
    write_comparison(comparison, tmp_path)
    page = (tmp_path / "comparison.md").read_text()
    assert "- hardware: Abacus, 2 cores; Zuse, 1 cores; Some GPU\n" in page
    assert "(commit abc1234, def5678)" in page


def test_the_files_tell_the_same(tmp_path: Path) -> None:
    write_comparison(COMPARISON, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "comparison.md",
        "comparison.csv",
        "comparison.json",
        "accuracy.png",
    }
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert [line["knn_20"]["mean"] for line in content["table"]] == [41]
    assert "41.0 ± 1.4" in (tmp_path / "comparison.md").read_text()
    with (tmp_path / "comparison.csv").open() as file:
        lines = list(csv.DictReader(file))
    chosen = [line for line in lines if line["chosen"] == "True"]
    assert [(line["lr"], line["knn_20"]) for line in chosen] == [("0.2", "40.0"), ("0.2", "42.0")]
    assert len(lines) == 6
    for line, run in zip(lines, content["runs"], strict=True):
        assert run.pop("curve") is not None
        assert line == {key: "" if value is None else str(value) for key, value in run.items()}


def test_a_plot_of_other_runs_does_not_stay(tmp_path: Path) -> None:
    write_comparison(COMPARISON, tmp_path)
    without_curve = made_up.outcome(curve=[])
    write_comparison(Comparison(tiny.config(), [row(0.1, without_curve)]), tmp_path)
    assert not (tmp_path / "accuracy.png").exists()


def test_the_page_ends_with_how_it_came_about(tmp_path: Path) -> None:
    write_comparison(COMPARISON, tmp_path)
    ends = (tmp_path / "comparison.md").read_text().splitlines()[-4:]
    for line, word in zip(ends, ("command", "date", "hardware", "software"), strict=True):
        assert line.startswith(f"- {word}: ")


def test_notes_say_what_a_reader_must_know() -> None:
    said = "\n".join(notes(COMPARISON))
    assert "All methods use resnet18 with 0.8 million parameters, " in said
    assert "was selected from 3 by hold-out accuracy" in said
    assert "5 of 6 runs are finished" in said
    assert "Failed: imsvd, lr 0.3, seed 1: the loss is no longer finite." in said
    assert "at a time" not in said
    shared = Comparison(tiny.config(), [row(0.1, made_up.outcome(parallel=3), made_up.outcome())])
    said = "\n".join(notes(shared))
    assert "Times of 1 run were measured with up to 3 runs at a time" in said
    assert "was selected" not in said
    assert "are finished" not in said


def test_a_best_learning_rate_at_an_end_of_the_grid_is_named() -> None:
    low, middle, high = (row(lr, made_up.scored(50, 40 + 100 * lr)) for lr in (0.1, 0.2, 0.3))
    upwards = "Best with the largest learning rate tried: imsvd. A larger one may"
    downwards = "Best with the smallest learning rate tried: imsvd. A smaller one may"
    worse_beyond = row(0.3, made_up.scored(50, 41))

    def said(*rows: ComparisonRow) -> str:
        return "\n".join(notes(Comparison(tiny.config(), list(rows))))

    assert upwards in said(low, middle, high)
    assert downwards in said(high, row(0.4, made_up.scored(1, 1)), row(0.5, made_up.scored(1, 1)))
    assert "that was tried" not in said(low, middle, worse_beyond)
    assert "that was tried" not in said(low, middle, row(0.3, None, failure="diverged"))
    assert "that was tried" not in said(low, high)
    assert "that was tried" not in said(low, middle, high, row(0.05, None))


def test_the_page_has_a_table_of_every_learning_rate_if_there_are_several(tmp_path: Path) -> None:
    write_comparison(COMPARISON, tmp_path)
    page = (tmp_path / "comparison.md").read_text()
    every = page[page.index("## Every learning rate") :]
    assert [f"| imsvd | {lr} |" in every for lr in (0.1, 0.2, 0.3)] == [True] * 3
    write_comparison(Comparison(tiny.config(), [BEST_ON_TEST]), tmp_path)
    assert "## Every" not in (tmp_path / "comparison.md").read_text()


def test_without_checks_while_training_there_is_no_plot(tmp_path: Path) -> None:
    write_comparison(Comparison(tiny.config(), [row(0.1, made_up.outcome(curve=()))]), tmp_path)
    assert not (tmp_path / "accuracy.png").exists()
