"""The demo from training to report, on the smallest run."""

from pathlib import Path

from rich.console import Console

from imsvd.demo import conclusions, run_demo
from tests.pretraining.tiny import SETTINGS


def test_the_demo_ends_with_sentences_and_a_report(tmp_path: Path) -> None:
    console = Console(record=True, width=200, quiet=False, file=(tmp_path / "log").open("w"))
    run_demo(tmp_path / "run", console, ["data.source=shapes:128", *SETTINGS])
    said = console.export_text()
    for phrase in ("Without labels,", "code of 4 variables", "Single variables recover", "Open "):
        assert phrase in said
    assert "_" not in said[said.index("Without labels") : said.index("Open ")]
    assert (tmp_path / "run" / "demo.png").exists()
    assert (tmp_path / "run" / "explanations" / "report.html").exists()


def test_conclusions_name_recovered_attributes() -> None:
    accuracies = {
        "chance": {"color": 10.0, "shape": 20.0},
        "untrained": {"color": 30.0, "shape": 30.0},
        "trained": {"color": 90.0, "shape": 70.0},
    }
    meaning = {"attributes_known": 8, "attributes_recovered": 1, "recovered": ["background_color"]}
    parts = {"discreteness": {"share_above_0.9": 0.634}, "meaning": meaning}
    sentences = conclusions(accuracies, {"units": [32] * 32, "parts": parts})
    assert "80 % of cases (untrained: 30 %, chance: 15 %)" in sentences[0]
    assert "63 % of these choices" in sentences[1]
    assert sentences[2].endswith("1 of 8 attributes of the images: background color.")
    meaning |= {"attributes_recovered": 0, "recovered": []}
    assert conclusions(accuracies, {"units": [32], "parts": parts})[2].endswith("images.")
