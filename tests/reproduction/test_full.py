"""`imsvd reproduce … --scale full` as a person meets it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from imsvd.reproduction import full
from imsvd.reproduction.dry_run import Trial
from imsvd.reproduction.variants import Run
from tests.training.tiny import CommandLine

UNITS = ["reproduce", "units", "--scale", "full", "--data", "/data/imagenet"]


def test_costs_and_commands_are_shown(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert command(UNITS) == 0
    assert "Table IX" in command.out
    assert "Runs: 5 for 10 entries" in command.out
    assert "Hardware: 4 × 8 GPUs. The paper has 32 V100" in command.out
    # 8.5 h each, by the paper for three of them and for all but a hair by the fit.
    assert "Training: 43 h one after the other (1,360 GPU hours)." in command.out
    by_paper = [line for line in command.out.splitlines() if line.rstrip().endswith(" Table IV")]
    assert len(by_paper) == 3
    assert "Disk: 15 GB" in command.out
    lines = command.out.splitlines()
    assert (
        sum(line.startswith("imsvd pretrain /data/imagenet --recipe imagenet") for line in lines)
        == 5
    )
    assert sum(line.startswith("imsvd evaluate linear ") for line in lines) == 5


def test_other_hardware_is_scaled(command: CommandLine) -> None:
    assert command([*UNITS, "--nodes", "1", "--gpus", "16"]) == 0
    assert "85 h, if they are V100" in command.out


def test_job_files_are_written(command: CommandLine, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    assert command([*UNITS, "--launcher", "torchrun", "--jobs", str(jobs)]) == 0
    assert {path.name for path in jobs.iterdir()} == {
        "README.md",
        "common.sh",
        "evaluate.tsv",
        "run.sh",
        "settings.sh",
        "train.tsv",
    }
    assert f"bash {jobs}/run.sh" in (jobs / "README.md").read_text()
    assert len((jobs / "train.tsv").read_text().splitlines()) == 5


def test_bad_requests_come_before_anything_is_shown(command: CommandLine, tmp_path: Path) -> None:
    jobs = ["--jobs", str(tmp_path / "jobs")]
    command.refuses([*UNITS, "--launcher", "pbs", *jobs], "'pbs'", "slurm or torchrun")
    assert not command.out
    command.refuses([*UNITS, "--launcher", "slurm", "--nodes", "3", *jobs], "24 processes")
    command.refuses([*UNITS, "--launcher", "slurm", "--gpus", "0", *jobs], "--gpus 0")
    command.refuses([*UNITS, "--nodes", "0"], "--nodes 0")
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(("error", "code"), [("", 0), ("no shape", 1)])
def test_a_dry_run_that_fails_ends_with_one(
    error: str, code: int, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def trials(runs: Sequence[Run], processes: int, console: object) -> list[Trial]:
        asked.append((len(runs), processes))
        return [Trial(run, 1, error) for run in runs]

    monkeypatch.setattr(full, "try_configurations", trials)
    assert command([*UNITS, "--dry-run"]) == code
    assert asked == [(5, 32)]
    assert "Commands" not in command.out
