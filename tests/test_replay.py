"""A step that overflows is found, kept, repeated with the same bits, and its first bad tensor named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from imsvd.checkpoints import read_checkpoint, write_checkpoint
from imsvd.discretizing.head import HeadTraining
from imsvd.engine.divergence import FOLDER
from imsvd.errors import InputError
from imsvd.pretraining.run import Pretraining, train
from imsvd.replay import replay
from imsvd.runs import RunFolder
from tests.discretizing import test_head
from tests.pretraining import tiny
from tests.pretraining.tiny import CommandLine

QUIET = Console(quiet=True)
CODE = ("code.variables=3", "code.units=4", "code.hidden=16")


def plant(monkeypatch: pytest.MonkeyPatch, kind: Any, weight: str, step: int) -> None:
    """Make one weight so large after `step` that what it multiplies overflows."""
    whole = kind.after_step

    def after_step(training: Any) -> None:
        whole(training)
        if training.step == step:
            name, _, path = weight.rpartition("/")
            with torch.no_grad():
                training.networks()[name].get_parameter(path).fill_(3e38)

    monkeypatch.setattr(kind, "after_step", after_step)


def diverge(folder: Path, *settings: str) -> str:
    with pytest.raises(InputError, match="no longer finite") as raised:
        train(tiny.config(*settings), RunFolder(folder), QUIET)
    return str(raised.value)


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which the sixth step overflows, in its second epoch."""
    folder = tmp_path_factory.mktemp("diverged") / "run"
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, Pretraining, "backbone.layer2.0.conv1.weight", 5)
        said = diverge(folder)
    assert "It began in step 6: output of backbone.layer2.0.conv1 (Conv2d): " in said
    assert f"imsvd replay {folder}" in said
    return folder


def test_a_planted_overflow_is_repeated_with_the_same_bits_and_named(diverged: Path) -> None:
    found = replay(diverged)
    assert (found.step, found.differing, found.surroundings) == (6, [], {})
    first = found.ranks[0].bad[0]
    assert (first.what, first.name, first.call) == ("output", "backbone.layer2.0.conv1", 1)
    assert first.bad > 0
    weight = next(seen for seen in first.inputs if seen.what == "weight")
    assert weight.range == pytest.approx((3e38, 3e38))
    assert found.ranks[0].last_good is not None
    assert found.ranks[0].last_good.bad == 0
    record = json.loads((diverged / FOLDER / "step.json").read_text())
    assert record["repeats"], "looking at a step must not change it"


def test_bits_that_differ_are_reported(
    diverged: Path, tmp_path: Path, command: CommandLine
) -> None:
    for name in (
        "config.yaml",
        *(f"{FOLDER}/{path.name}" for path in (diverged / FOLDER).iterdir()),
    ):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((diverged / name).read_bytes())
    kept = tmp_path / FOLDER / "rank-0.safetensors"
    step = read_checkpoint(kept)
    step["batch"][0][0][0, 0, 0, 0] += 1  # one pixel
    write_checkpoint(kept, step)
    found = replay(tmp_path)
    assert {"gradients", "weights"} & set(found.differing)
    assert command(["replay", str(tmp_path)]) == 1
    assert "Other bits than in the run" in command.out


def test_the_command_shows_the_tensor_and_what_it_was_given(
    diverged: Path, command: CommandLine
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in diverged.rglob("*"))
    assert command(["replay", str(diverged)]) == 0
    assert "Same bits as in the run" in command.out
    lines = [line.split()[0] for line in command.out.splitlines()[2:]]
    assert lines[:4] == ["before", "first", "given", "given"]
    assert sorted((path, path.stat().st_mtime_ns) for path in diverged.rglob("*")) == before


def test_a_run_that_did_not_diverge_has_nothing_to_replay(
    trained: Path, command: CommandLine
) -> None:
    command.refuses(["replay", str(trained)], "keeps no step to replay")


def test_a_step_before_the_first_checkpoint_is_found_from_the_initial_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, Pretraining, "projector.0.weight", 1)
    assert "It began in step 2: output of projector.0 (Linear)" in diverge(tmp_path / "run")
    assert replay(tmp_path / "run").differing == []


def test_a_code_head_that_overflows_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, Pretraining, "code/projector.0.weight", 2)
    said = diverge(tmp_path / "run", *CODE)
    assert "it is the code head's: lower code.lr" in said
    assert "It began in step 3: output of code.projector.0 (Linear)" in said
    monkeypatch.undo()
    assert replay(tmp_path / "run").differing == []


def test_the_head_of_discretize_is_replayed_without_its_features(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, HeadTraining, "projector.0.weight", 7)
    with pytest.raises(InputError, match=r"It began in step 8: output of projector\.0"):
        test_head.training(trained, tmp_path / "run").fit(QUIET)
    monkeypatch.undo()
    found = replay(tmp_path / "run")
    assert (found.differing, found.ranks[0].bad[0].name) == ([], "projector.0")
