"""Opening a run: missing, changed or damaged files are reported with the remedy."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imsvd.errors import InputError
from imsvd.explanations import explain
from imsvd.explorer import create_app, open_run
from imsvd.explorer.explorer import EncoderThread


@pytest.fixture
def run(explained_photographs: Path, tmp_path: Path) -> Path:
    """A copy with its own images, to be damaged by a test."""
    path = Path(shutil.copytree(explained_photographs, tmp_path / "run"))
    data = shutil.copytree(explained_photographs.parent / "data", tmp_path / "data")
    summary = path / "explanations" / "summary.json"
    record = json.loads(summary.read_text())
    summary.write_text(json.dumps({**record, "run": str(path), "data": str(data)}))
    return path


def test_an_intact_run_opens(run: Path) -> None:
    assert len(open_run(run).encodings.images) == 5


def test_the_command_that_repeats_an_explanation_names_its_split(run: Path) -> None:
    data = run.parent / "data"
    assert open_run(run).command == f"imsvd explain {run} {data}"
    opened = replace(open_run(run), summary={**open_run(run).summary, "split": "test"})
    assert opened.command == f"imsvd explain {run} {data} --split test"


def test_without_an_explanation_the_command_is_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"has not been explained yet; run `imsvd explain .* DATA`"
    ):
        open_run(trained)
    with pytest.raises(InputError, match="is not a run folder"):
        create_app([tmp_path / "nothing"])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"key": 3}', "\x00"])
def test_a_damaged_summary_counts_as_none(run: Path, content: str) -> None:
    (run / "explanations" / "summary.json").write_text(content)
    with pytest.raises(InputError, match="has not been explained yet"):
        open_run(run)


def test_changed_images_are_noticed(run: Path) -> None:
    (run.parent / "data" / "left" / "9.jpg").write_bytes(b"new")
    with pytest.raises(
        InputError, match=r"other images than .*data has now, .*; run `imsvd explain"
    ):
        open_run(run)


def test_moved_images_are_found_again_by_explain(run: Path) -> None:
    before = json.loads((run / "explanations" / "summary.json").read_text())
    moved = (run.parent / "data").rename(run.parent / "moved")
    with pytest.raises(InputError, match="if they have moved, run `imsvd explain"):
        open_run(run)
    explain(run, moved, only=("discreteness",))
    after = json.loads((run / "explanations" / "summary.json").read_text())
    assert after == {**before, "data": str(moved)}
    assert len(open_run(run).encodings.images) == 5


def test_changed_weights_are_noticed(run: Path) -> None:
    thread = EncoderThread()
    opened = open_run(run)
    weights = run / "encoder.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(InputError, match="other weights"):
        open_run(run)
    # The encoder of a run that is still training may change while the explorer runs.
    with pytest.raises(InputError, match="have changed since it was explained"):
        thread.encoder(opened)
    thread.close()


def test_missing_and_damaged_encodings_are_noticed(run: Path) -> None:
    file = run / "explanations" / "encodings.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match="missing or damaged; run `imsvd explain"):
        open_run(run)
    file.unlink()
    with pytest.raises(InputError, match="missing or damaged"):
        open_run(run)
