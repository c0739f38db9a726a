"""The demo from training to report, on the smallest run."""

from pathlib import Path

import pytest
from rich.console import Console

from imsvd.demo import conclusions, program, run_demo
from tests.pretraining.tiny import SETTINGS


def test_the_demo_ends_with_sentences_and_a_report(tmp_path: Path) -> None:
    console = Console(record=True, width=200, quiet=False, file=(tmp_path / "log").open("w"))
    run_demo(
        tmp_path / "run",
        console,
        ["data.source=shapes:128", *SETTINGS, "code={variables: 8, units: 2}"],
    )
    said = " ".join(console.export_text().split())
    for phrase in ("Nobody told the network", "8 questions with 2", "single ones largely reveal"):
        assert phrase in said
    assert "of the 5 hold on new images" in said
    assert "_" not in said[said.index("Nobody told") : said.index("To see it")]
    assert (tmp_path / "run" / "demo.png").exists()
    assert (tmp_path / "run" / "explanations" / "report.html").exists()


def test_conclusions_name_recovered_attributes() -> None:
    accuracies = {
        "chance": {"color": 10.0, "shape": 20.0},
        "untrained": {"color": 30.0, "shape": 30.0},
        "trained": {"color": 90.0, "shape": 70.0},
    }
    meaning = {"attributes_known": 8, "recovered": ["stroke_width", "color", "light"]}
    properties = [{"verdict": "holds"}, {"verdict": "partly"}, {"verdict": "fails"}]
    parts = {
        "discreteness": {"share_above_0.9": 0.634},
        "meaning": meaning,
        "joint": {"properties": properties},
    }
    summary = {"units": [4] * 32, "parts": parts}
    seen, code, names, theory = conclusions(accuracies, summary)
    assert "80 % of the time (before training: 30 %, guessing: 15 %)" in seen
    assert "32 questions with 4 possible answers each, of which it answers 63 % clearly" in code
    assert names.endswith(
        "3 of the 8 properties that the images were drawn with: stroke width, color and light."
    )
    assert theory.endswith("1 of the 3 hold on new images.")
    meaning["recovered"] = ["color"]
    assert conclusions(accuracies, summary)[2].endswith("drawn with: color.")
    meaning["recovered"] = []
    assert conclusions(accuracies, summary)[2].endswith(
        "0 of the 8 properties that the images were drawn with."
    )


def test_the_next_command_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After `make demo`, `imsvd` is in .venv/bin and not on the path."""
    monkeypatch.setattr("sys.argv", [".venv/bin/imsvd", "demo"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == ".venv/bin/imsvd"
    monkeypatch.setattr("sys.argv", ["src/imsvd/__main__.py", "demo"])
    assert program() == "imsvd"
