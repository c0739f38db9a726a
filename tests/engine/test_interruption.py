"""Runs that are killed or stopped at any moment, and resumed, end as if nothing had happened."""

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from imsvd.checkpoints import load_newest_checkpoint
from tests.engine.processes import (
    ForkingServer,
    Launcher,
    python_module,
    saved_step,
    wait_for_step,
)
from tests.pretraining import tiny

EPOCHS = 3
STEPS = 8 * EPOCHS
SETTINGS = (
    f"training.epochs={EPOCHS}",
    "optimizer.name=lars",
    # Stochastic depth draws from the global generator, whose state must survive as well.
    "backbone.options.drop_path_rate=0.3",
    "compute.checkpoint_minutes=1e-9",
)
COSTS = ("seconds", "total_seconds", "images_per_second", "peak_memory")


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkingServer]:
    server = ForkingServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def uninterrupted(forked: ForkingServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    run = folder / "run"
    # Without checkpoints inside epochs: whether one is written must not matter either.
    command = tiny.arguments("shapes:256", run, *SETTINGS, "compute.checkpoint_minutes=60")
    assert forked(command, folder / "output").wait() == 0
    return run


def metrics(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: item for name, item in record.items() if name not in COSTS} for record in records
    ]


def assert_same_state(first: Any, second: Any) -> None:
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same_state(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same_state(one, other)
    else:
        assert first == second


def assert_same_run(run: Path, expected: Path) -> None:
    assert metrics(run) == metrics(expected)
    weights = [folder / "encoder.safetensors" for folder in (run, expected)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    states = [load_newest_checkpoint(folder / "checkpoints")[0] for folder in (run, expected)]
    for state in states:
        assert state is not None
        assert state["extra"].pop("seconds") > 0
        assert state["step"] == STEPS
    assert_same_state(*states)


def kill_and_resume(start: Launcher, folder: Path, kills: int) -> Path:
    run = folder / "run"
    command = tiny.arguments("shapes:256", run, *SETTINGS)
    moments = sorted(random.Random(0).sample(range(1, STEPS - 2), kills))
    for moment in moments:
        running = start(command, folder / "output")
        wait_for_step(running, run, moment)
        running.send(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
        assert moment <= saved_step(run) < STEPS
    assert start(command, folder / "output").wait() == 0
    return run


def test_five_sigkills_leave_no_trace(
    forked: ForkingServer, uninterrupted: Path, tmp_path: Path
) -> None:
    run = kill_and_resume(forked, tmp_path, kills=5)
    assert_same_run(run, uninterrupted)
    assert not [path for path in run.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.slow
def test_five_sigkills_of_python_dash_m_imsvd_leave_no_trace(
    uninterrupted: Path, tmp_path: Path
) -> None:
    assert_same_run(kill_and_resume(python_module, tmp_path, kills=5), uninterrupted)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_a_polite_signal_saves_first(
    number: signal.Signals, code: int, forked: ForkingServer, uninterrupted: Path, tmp_path: Path
) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    command = tiny.arguments("shapes:256", run, *SETTINGS)
    running = forked(command, output)
    wait_for_step(running, run, 3)
    running.send(number)
    assert running.wait() == code
    assert f"Stopped and saved at step {saved_step(run)}" in output.read_text()
    assert "Traceback" not in output.read_text()
    assert forked(command, output).wait() == 0
    assert_same_run(run, uninterrupted)


def test_a_finished_run_says_so_and_changes_nothing(
    forked: ForkingServer, uninterrupted: Path, tmp_path: Path
) -> None:
    before = (uninterrupted / "encoder.safetensors").read_bytes()
    log = (uninterrupted / "metrics.jsonl").read_bytes()
    command = tiny.arguments("shapes:256", uninterrupted, *SETTINGS)
    assert forked(command, tmp_path / "output").wait() == 0
    assert "already trained" in " ".join((tmp_path / "output").read_text().split())
    assert (uninterrupted / "encoder.safetensors").read_bytes() == before
    assert (uninterrupted / "metrics.jsonl").read_bytes() == log
