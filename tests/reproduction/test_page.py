"""docs/reproduction.md: made from the store, whatever that holds."""

from pathlib import Path

from rich.console import Console

from imsvd.grid.jobs import data_fingerprint
from imsvd.reproduction.experiments import EXPERIMENTS, Setup
from imsvd.reproduction.page import write_page
from imsvd.reproduction.reproduce import reproduce
from tests.grid import small
from tests.reproduction.made_up import Children
from tests.training.tiny import CommandLine


def test_an_empty_store_gives_a_page_that_says_what_will_be_there(
    command: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "docs" / "page.md"
    assert command(["reproduce", "--out", str(tmp_path), "--write-docs", str(path)]) == 0
    text = path.read_text()
    for name, experiment in EXPERIMENTS.items():
        assert f"## {name}: {experiment.source}\n" in text
        assert f"Not run yet: `imsvd reproduce {name} --data DIR`." in text
    assert "Nothing has been run yet." in text
    assert not list(tmp_path.rglob("*.png"))
    # The command of a page that has results, without their store.
    path.write_text("results")
    command.refuses(
        ["reproduce", "--out", str(tmp_path), "--write-docs", str(path)],
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
    assert "on pictures, with 2 seeds" in text
    assert "| units | Table IX | " in text
    assert "![units](images/reproduction-units.png)" in text
    assert (path.parent / "images" / "reproduction-units.png").stat().st_size > 5_000
    assert "Not run yet: `imsvd reproduce width --data DIR`." in text
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
