"""The protocols from the command line: what they record, and what they refuse before training."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.places import write_places
from tests.test_api import write_images
from tests.training.tiny import CommandLine


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_images(tmp_path / "data" / "train", 60, classes=3)
    write_images(tmp_path / "data" / "test", 12, classes=3)
    return tmp_path / "data"


def results(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]


def test_every_protocol_on_small_data(
    command: CommandLine, run: Path, data: Path, tmp_path: Path
) -> None:
    places = write_places(tmp_path / "places", side=100)
    names = tmp_path / "names.txt"
    names.write_text("0000.png\n0001.png\n0002.png\n0003.png\n")
    commands = [
        ["linear", str(run), str(data)],
        ["finetune", str(run), str(data)],
        ["semi", str(run), str(data), "--fraction", "0.1"],
        ["semi", str(run), str(data), "--fraction", "0.01", "--list", str(names)],
        ["places205", str(run), str(places), "--set", "head_lr=0.02"],
    ]
    for arguments in commands:
        assert command(["evaluate", *arguments, "--epochs", "1"]) == 0, command.err
        assert "_best_epoch_top1" in command.out
        assert "epoch 1/1" in command.out
    # Asked again, it answers from what is there.
    assert command(["evaluate", *commands[0], "--epochs", "1"]) == 0
    assert f"Already evaluated: {run}/evaluations/linear-" in command.out
    records = results(run)
    protocols = ["linear", "finetune", "semi-10", "semi-1", "places205"]
    assert [record["protocol"] for record in records] == protocols
    for record in records:
        prefix = record["protocol"].replace("-", "_")
        assert set(record["metrics"]) == {f"{prefix}_top1", f"{prefix}_best_epoch_top1"}
        assert record["details"]["settings"]["epochs"] == 1
    assert [record["details"]["train_images"] for record in records] == [60, 60, 6, 4, 12]
    assert [record["details"]["test_images"] for record in records] == [12, 12, 12, 12, 6]
    assert [record["details"]["settings"]["frozen"] for record in records] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert records[-1]["details"]["settings"]["head_lr"] == 0.02


def test_bad_input_is_one_sentence_before_any_training(
    command: CommandLine, run: Path, data: Path, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("0000.png\nnowhere.png\n")
    cases: list[tuple[list[str], str]] = [
        (["linear", str(tmp_path), str(data)], "is not a run folder"),
        (["linear", str(run), str(data), "--recipe", "cifar"], "no recipe 'cifar'"),
        (["linear", str(run), str(data), "--set", "lr=1"], "no setting 'lr'"),
        (["linear", str(run), str(data), "--epochs", "0"], "epochs=0 cannot be used"),
        (["finetune", str(run), str(data / "train")], "has no test images"),
        (["finetune", str(run), str(data), "--set", "batch_size=64"], "larger than the 60"),
        (["semi", str(run), str(data), "--fraction", "10"], "--fraction 10 is no share"),
        (
            ["semi", str(run), str(data), "--fraction", "0.1", "--list", str(names)],
            "lists nowhere.png",
        ),
        (["places205", str(run), str(data)], "not in the layout of Places205"),
    ]
    for arguments, phrase in cases:
        command.refuses(["evaluate", *arguments], phrase)
    assert not (run / "evaluations").exists()
    assert not (run / "results.jsonl").exists()
