"""The whole command on a tiny run: files, resuming, refusals."""

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import imsvd
from imsvd.datasets import ShapesSource, open_source
from imsvd.datasets.decoding import decode_image
from imsvd.errors import Interrupted
from imsvd.explanations import explain, faithfulness, subject
from imsvd.explanations.parts import PARTS
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine


@pytest.fixture(scope="module")
def explained(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all parts of its explanation; copy it before changing anything in it."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("explained") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faithfulness.CropSample, "sample", 40)
        explain(run, "shapes:128")
    return run


def read(run: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "explanations" / name).read_text())
    return record


def test_everything_is_written(explained: Path) -> None:
    folder = explained / "explanations"
    expected = {name for part in PARTS.values() for name in part.files}
    expected |= {
        "summary.json",
        "report.html",
        "meaning.png",
        "galleries",
        "encodings.safetensors",
        "known-codes.safetensors",
        "pictures.safetensors",
    }
    assert {path.name for path in folder.iterdir()} == expected
    assert {path.name for path in (folder / "galleries").iterdir()} == {
        f"variable-00{number}.jpg" for number in range(4)
    }
    for path in folder.glob("*.png"):
        assert Image.open(path).width > 400
    assert np.load(folder / "mutual_information.npy").shape == (4, 4)


def test_the_summary_has_a_headline_for_every_part(explained: Path) -> None:
    summary = read(explained, "summary.json")
    assert list(summary["parts"]) == list(PARTS)
    assert summary["images"] == 128
    assert summary["units"] == [4, 4, 4, 4]
    assert summary["parts"]["meaning"]["attributes_known"] == 8
    assert len(summary["parts"]["joint"]["properties"]) == 5


def test_galleries_list_every_unit_with_paths_and_scores(explained: Path) -> None:
    listing = read(explained, "galleries.json")
    units = [unit for variable in listing["variables"] for unit in variable["units"]]
    assert len(units) == 16
    encoder = imsvd.load(explained)
    source = open_source("shapes:128")
    for unit in units:
        scores = [item["score"] for item in unit["top"]]
        assert scores == sorted(scores, reverse=True)
        assert all(item["path"] == f"shapes/train/{item['index']}" for item in unit["top"])
    best = units[0]["top"][0]
    with torch.no_grad():
        q = encoder.probabilities(source.read(best["index"])[None])
    assert float(q[0, 0]) == pytest.approx(best["score"], abs=1e-4)
    for variable in listing["variables"]:
        assert sum(unit["images_taking_it"] for unit in variable["units"]) == 128


def test_finished_parts_are_not_repeated(
    explained: Path, tmp_path: Path, command: CommandLine
) -> None:
    run = Path(shutil.copytree(explained, tmp_path / "run"))
    (run / "explanations" / "retrieval.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in (run / "explanations").glob("*.png")}
    assert command(["explain", str(run), "shapes:128"]) == 0
    assert command.out.count("already finished") == len(PARTS) - 1
    assert "Theorem properties: predicted vs. measured" in command.out
    assert (run / "explanations" / "retrieval.json").exists()
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_lost_encodings_are_made_again_and_parts_are_not(explained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(explained, tmp_path / "run"))
    encodings, figure = (
        run / "explanations" / name for name in ("encodings.safetensors", "discreteness.png")
    )
    content, made = encodings.read_bytes(), figure.stat().st_mtime_ns
    encodings.unlink()
    explain(run, "shapes:128", only=["discreteness"])
    assert encodings.read_bytes() == content
    assert figure.stat().st_mtime_ns == made


def test_other_data_are_explained_anew(explained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(explained, tmp_path / "run"))
    summary = explain(run, write_images(tmp_path / "data", 15), only=["discreteness"])
    assert summary["images"] == 15
    assert list(summary["parts"]) == ["discreteness"]
    assert read(run, "discreteness.json")["images"] == 15


def test_an_interruption_keeps_what_is_done(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    real = PARTS["discreteness"]

    def stop(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(PARTS, "discreteness", real._replace(make=stop))
        with pytest.raises(Interrupted) as caught:
            explain(run, "shapes:32", only=["embeddings", "discreteness"])
    assert caught.value.exit_code == 130
    assert list(read(run, "summary.json")["parts"]) == ["embeddings"]
    made: list[str] = []

    def note(name: str, *_: object) -> dict[str, Any]:
        made.append(name)
        return {}

    for name in ("embeddings", "discreteness"):
        noted = PARTS[name]._replace(make=partial(note, name), tiles=lambda _: [])
        monkeypatch.setitem(PARTS, name, noted)
    explain(run, "shapes:32", only=["embeddings", "discreteness"])
    assert made == ["discreteness"]


def test_images_without_labels_have_all_but_meaning(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    data = write_images(tmp_path / "data", 14)
    summary = explain(
        run, data, only=["joint", "meaning", "retrieval"], console=Console(quiet=True)
    )
    assert summary["parts"]["meaning"]["attributes_known"] == 0
    assert not (run / "explanations" / "meaning.png").exists()
    assert "code_recall_at_1" not in summary["parts"]["retrieval"]


def test_refusals(command: CommandLine, trained: Path, tmp_path: Path) -> None:
    base = ["explain", str(trained), "shapes:32"]
    command.refuses([*base, "--only", "joint,galeries"], "'galeries' is not a part", "galleries")
    command.refuses([*base, "--split", "val"], "choose train or test")
    command.refuses(["explain", str(tmp_path), "shapes:32"], "is not a run folder")
    command.refuses(["explain", str(trained), str(tmp_path / "none")], "there is no folder")


def test_every_image_is_decoded_once(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    data = write_images(tmp_path / "data", 30)
    (data / "bad.png").write_bytes(b"broken")
    decoded: list[str] = []

    def count(content: bytes, identity: str) -> torch.Tensor:
        decoded.append(identity)
        return decode_image(content, identity)

    for module in ("datasets.sources", "explanations.subject"):
        monkeypatch.setattr(f"imsvd.{module}.decode_image", count)
    explain(run, data)
    assert len(decoded) == 31
    assert len(set(decoded)) == 31
    assert (run / "explanations" / "report.html").exists()


def test_a_command_stopped_while_reading_resumes(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    monkeypatch.setattr(subject, "BATCH", 8)
    monkeypatch.setattr(subject, "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(subject, "_SAVE_COST", float("inf"))
    read: list[int] = []
    original = ShapesSource.read_many

    def stop(source: ShapesSource, indices: Sequence[int]) -> list[torch.Tensor]:
        if indices[0] == 24 and 24 not in read:
            read.extend(indices)
            raise KeyboardInterrupt
        read.extend(indices)
        return original(source, indices)

    monkeypatch.setattr(ShapesSource, "read_many", stop)
    only = ["joint", "discreteness"]
    with pytest.raises(Interrupted):
        explain(run, "shapes:40", only=only)
    assert (run / "explanations" / "images.partial.npz").exists()
    read.clear()
    read.append(24)
    summary = explain(run, "shapes:40", only=only)
    assert read[1:] == list(range(24, 40))
    assert list(summary["parts"]) == only
    assert not (run / "explanations" / "images.partial.npz").exists()


def test_the_help_text_names_every_part(command: CommandLine) -> None:
    command(["explain", "--help"])
    for name in PARTS:
        assert name in command.out
