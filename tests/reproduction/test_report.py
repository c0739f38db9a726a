"""Tables of results, and docs/reproduction.md made from any store."""

from pathlib import Path
from typing import Any

from rich.console import Console

from imsvd.grid.jobs import data_fingerprint
from imsvd.reproduction.experiment import Setup
from imsvd.reproduction.experiments import EXPERIMENTS
from imsvd.reproduction.report import value_table, write_page
from imsvd.reproduction.running import reproduce
from tests.grid import small
from tests.pretraining.tiny import CommandLine
from tests.reproduction.made_up import Children


def test_an_empty_store_gives_a_page_that_says_what_will_be_there(
    command: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "docs" / "page.md"
    assert command(["reproduce", "collect", "--out", str(tmp_path), "--write-docs", str(path)]) == 0
    text = path.read_text()
    for name, experiment in EXPERIMENTS.items():
        assert f"## {name}: {experiment.source}\n" in text
        assert f"Not run yet: `imsvd reproduce run {name} --data DIR`." in text
    assert "No experiment has been run yet." in text
    assert not list(tmp_path.rglob("*.png"))
    # The command of a page that has results, without their store.
    path.write_text("results")
    command.refuses(
        ["reproduce", "collect", "--out", str(tmp_path), "--write-docs", str(path)],
        "holds no results",
        "--out",
    )
    assert path.read_text() == "results"


def test_results_come_with_their_plots_and_without_the_place_of_the_images(
    children: Children, tmp_path: Path
) -> None:
    data = small.write_data(tmp_path / "secret" / "pictures")
    children.data = data_fingerprint(str(data))
    setup = Setup("cpu", str(data), (0, 1))
    chosen = [EXPERIMENTS["units"], EXPERIMENTS["loss-terms"]]
    reproduce(chosen, setup, tmp_path / "store", console=Console(quiet=True))
    path = tmp_path / "docs" / "page.md"
    assert write_page(tmp_path / "store", path) == ["loss-terms", "units"]
    text = path.read_text()
    assert "secret" not in text
    assert str(tmp_path) not in text
    assert "on pictures, 4 epochs for every 100 of the paper, 2 seeds." in text
    assert "| units | Table IX | " in text
    assert "![units](images/reproduction-units.png)" in text
    assert (path.parent / "images" / "reproduction-units.png").stat().st_size > 5_000
    assert "Not run yet: `imsvd reproduce run width --data DIR`." in text
    again = path.read_bytes()
    write_page(tmp_path / "store", path)
    assert path.read_bytes() == again
    # What a person says about a result is quoted.
    comment = tmp_path / "store" / "experiments" / "units" / "comment.md"
    comment.write_text("Few images take a unit when there are many.\n")
    (tmp_path / "store" / "comment.md").write_text("The pictures are all squares.")
    write_page(tmp_path / "store", path)
    assert "\n\nThe pictures are all squares.\n\n" in path.read_text()
    assert "\n\nFew images take a unit when there are many.\n\n" in path.read_text()
    # A damaged result counts as none.
    (tmp_path / "store" / "experiments" / "units" / "result.json").write_text("{")
    assert write_page(tmp_path / "store", path) == ["loss-terms"]


def cell(column: str, measure: str, *, setting: str = "", row: str = "IMSVD") -> dict[str, Any]:
    found = {"row": row, "column": column, "measure": measure, "setting": setting}
    return found | {"paper": 8.5, "mean": 39.4, "sd": None}


def lines(*cells: dict[str, Any]) -> list[str]:
    return value_table(cells, "of what")


def test_columns_of_different_units_say_what_is_measured_here() -> None:
    head, _, here, paper, ours = lines(cell("hours", "seconds"), cell("memory", "MiB"))
    assert head == "|  | of what | hours | memory |"
    assert here == "|  | here | seconds | MiB |"
    assert paper == "| IMSVD | paper | 8.5 | 8.5 |"
    assert ours == "|  | here | 39.4 | 39.4 |"


def test_what_all_columns_measure_is_said_in_the_row() -> None:
    _, _, _, ours = lines(cell("100", "top-1, %"), cell("200", "top-1, %"))
    assert ours == "|  | here: top-1, % | 39.4 | 39.4 |"
    _, _, *rows = lines(cell("1", "top-1"), cell("1", "seconds", row="time"))
    assert rows[1::2] == ["|  | here: top-1 | 39.4 |", "|  | here: seconds | 39.4 |"]


def test_other_settings_are_told_and_names_not_repeated() -> None:
    assert lines(cell("100", "top-1", setting="4 epochs"))[2] == "|  | here | 4 epochs |"
    assert len(lines(cell("AP", "AP"), cell("AP50", "AP50"))) == 4
