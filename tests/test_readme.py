"""What README.md shows must work as it is written; tests/test_snippets.py runs its commands."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT, blocks

README = ROOT / "README.md"
SHAPES = re.compile(r"^(\S.*?)\s+# (\([\d, ]+\))", flags=re.MULTILINE)


def test_python_code_runs_and_gives_the_shapes_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = [block.text for block in blocks(README) if block.language == "python"]
    assert snippets
    for snippet in snippets:
        names: dict[str, Any] = {}
        exec(snippet, names)
        for expression, shape in SHAPES.findall(snippet):
            assert str(tuple(eval(expression, names).shape)) == shape, expression


def test_it_can_be_finished() -> None:
    assert len(README.read_text().splitlines()) <= 110


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_demo_installs_what_the_second_command_needs() -> None:
    made = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--always-make", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ".[explorer]" in made.stdout
    assert made.stdout.rstrip().endswith(".venv/bin/imsvd demo")


@pytest.mark.slow
def test_the_two_commands_lead_to_a_picture_and_a_page(tmp_path: Path) -> None:
    imsvd = [sys.executable, "-m", "imsvd"]
    shown = subprocess.run(
        [*imsvd, "demo"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "without any labels" in shown.stdout
    assert (tmp_path / "runs/demo/demo.png").exists()
    assert (tmp_path / "runs/demo/explanations/report.html").exists()
    explore = [*imsvd, "explore", "runs/demo", "--no-browser", "--port", "0"]
    quiet = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(explore, cwd=tmp_path, stdout=subprocess.PIPE, env=quiet) as server:
        assert server.stdout is not None
        try:
            lines = iter(server.stdout.readline, b"")
            address = next(found[0] for line in lines if (found := _address(line.decode())))
            with urllib.request.urlopen(address) as page:
                assert b"imsvd" in page.read()
        finally:
            server.terminate()


def _address(line: str) -> re.Match[str] | None:
    return re.search(r"http://127\.0\.0\.1:\d+\S*", line)
