import csv
import json
from pathlib import Path

from imsvd.grid.outcome import Outcome
from imsvd.grid.report import Comparison, choose, notes, write_comparison
from imsvd.grid.table import Entry, Row
from tests.grid import made_up
from tests.training import tiny


def row(lr: float, *outcomes: Outcome | None, failure: str = "") -> Row:
    entries = (
        Entry("imsvd", lr, seed, "runs/x", out, "" if out else failure)
        for seed, out in enumerate(outcomes)
    )
    return Row("imsvd", lr, tuple(entries))


BEST_ON_TEST = row(0.1, made_up.scored(90, 50), made_up.scored(91, 52))
BEST_ON_HOLD_OUT = row(0.2, made_up.scored(40, 60), made_up.scored(42, 45))
FAILED_ONCE = row(0.3, made_up.scored(80, 99), None, failure="the loss is no longer finite.")
COMPARISON = Comparison(tiny.config(), [BEST_ON_TEST, BEST_ON_HOLD_OUT, FAILED_ONCE])


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
    assert "Every method: resnet18 of 0.8 million parameters, " in said
    assert "Of 3 learning rates per method" in said
    assert "5 of 6 runs are finished" in said
    assert "Failed: imsvd, lr 0.3, seed 1: the loss is no longer finite." in said
    assert "at a time" not in said
    shared = Comparison(tiny.config(), [row(0.1, made_up.outcome(parallel=3), made_up.outcome())])
    said = "\n".join(notes(shared))
    assert "Times of 1 run were measured with up to 3 runs at a time" in said
    assert "learning rates per method" not in said
    assert "are finished" not in said


def test_a_best_learning_rate_at_an_end_of_the_grid_is_named() -> None:
    low, middle, high = (row(lr, made_up.scored(50, 40 + 100 * lr)) for lr in (0.1, 0.2, 0.3))
    upwards = "Best with the largest learning rate that was tried: imsvd. A larger one may"
    downwards = "Best with the smallest learning rate that was tried: imsvd. A smaller one may"
    worse_beyond = row(0.3, made_up.scored(50, 41))

    def said(*rows: Row) -> str:
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
