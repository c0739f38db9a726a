"""`--scale full --collect`: tables of what a cluster has left in a store."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from imsvd.evaluation.classification import LINEAR_RECIPES
from imsvd.evaluation.results import PAPER_SETTINGS, append_result
from imsvd.grid.jobs import run_folder
from imsvd.reproduction.collecting import collect, gather_full, training_costs
from imsvd.reproduction.experiments import EXPERIMENTS, Experiment, Run, Setup
from imsvd.reproduction.page import write_page
from imsvd.reproduction.results import Found
from imsvd.runs import RunFolder
from tests.training.tiny import CommandLine

SETUP = Setup("full", data="/data/imagenet")
UNITS, COST, TRANSFER = (EXPERIMENTS[name] for name in ("units", "cost", "transfer"))
QUIET = Console(quiet=True)


def leave_run(store: Path, run: Run, *, epochs: int | None = None) -> Path:
    """What a training leaves behind, whole or after some epochs."""
    folder = RunFolder(run_folder(store, run.job))
    folder.begin(run.job.config)
    records: list[dict[str, Any]] = [
        {"epoch": epoch, "total_seconds": 360.0 * epoch, "peak_memory": 10**9 * (5 + epoch % 2)}
        for epoch in range(1, (epochs or run.job.epochs) + 1)
    ]
    folder.rewrite_metrics(records)
    return folder.path


def record(
    folder: Path,
    protocol: str,
    data: str = SETUP.data,
    details: dict[str, Any] | None = None,
    **metrics: float,
) -> None:
    """A result as the published settings give it of the run as it is now."""
    records = RunFolder(folder).metrics()
    known: dict[str, Any] = {"epoch": records[-1]["epoch"]} if records else {}
    if protocol in PAPER_SETTINGS:
        known["settings"] = PAPER_SETTINGS[protocol].model_dump(mode="json")
    append_result(folder, protocol, metrics, data=data, details=known | (details or {}))


def found(experiment: Experiment, store: Path, row: str, column: str) -> Found:
    result = gather_full(experiment, SETUP, store)
    (cell,) = (one for one in result.found if (one.cell.row, one.cell.column) == (row, column))
    return cell


def run_of(experiment: Experiment, row: str, column: str) -> Run:
    (cell,) = (c for c in experiment.cells(SETUP) if (c.row, c.column) == (row, column))
    return cell.runs[0]


def test_the_latest_result_on_the_right_images_counts(tmp_path: Path) -> None:
    folder = leave_run(tmp_path, run_of(UNITS, "top-1", "80"))
    record(folder, "linear", linear_top1=60.0)
    record(folder, "linear", linear_top1=70.5, linear_top5=89.9)
    record(folder, "linear", data="/data/other", linear_top1=99.0)
    record(folder, "linear", details={"encoder": "untrained"}, linear_top1=1.0)
    record(folder, "linear", details={"epoch": 50}, linear_top1=2.0)
    trial = LINEAR_RECIPES["imagenet"].model_copy(update={"epochs": 1}).model_dump(mode="json")
    record(folder, "linear", details={"settings": trial}, linear_top1=3.0)
    assert found(UNITS, tmp_path, "top-1", "80").values == (70.5,)
    assert found(UNITS, tmp_path, "top-5", "80").values == (89.9,)
    assert found(UNITS, tmp_path, "top-1", "64").values == (None,)
    result = gather_full(UNITS, SETUP, tmp_path)
    assert (result.finished, result.total, result.complete) == (1, 5, False)


def test_a_run_that_is_not_over_has_no_results(tmp_path: Path) -> None:
    folder = leave_run(tmp_path, run_of(UNITS, "top-1", "80"), epochs=99)
    record(folder, "linear", linear_top1=60.0)
    assert found(UNITS, tmp_path, "top-1", "80").values == (None,)
    assert gather_full(UNITS, SETUP, tmp_path).finished == 0


def test_time_and_memory_are_what_training_recorded(tmp_path: Path) -> None:
    leave_run(tmp_path, run_of(COST, "IMSVD", "hours"))
    assert found(COST, tmp_path, "IMSVD", "hours").values == (10.0,)
    assert found(COST, tmp_path, "IMSVD", "memory").values == (6.0,)
    assert training_costs([]) == {}
    assert training_costs([{"total_seconds": 36.0}]) == {"hours_per_100_epochs": 1.0}


def test_a_published_backbone_is_read_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert found(TRANSFER, tmp_path, "Supervised", "VOC07 mAP").values == (None,)
    assert not (tmp_path / "results").exists()
    folder = tmp_path / "results" / "torchvision-resnet50"
    folder.mkdir(parents=True)
    record(folder, "voc07", data="voc2007", voc07_map=87.5)
    assert found(TRANSFER, tmp_path, "Supervised", "VOC07 mAP").values == (87.5,)


def test_a_figure_counts_when_it_is_drawn(tmp_path: Path) -> None:
    figure = EXPERIMENTS["joint-matrix"]
    folder = leave_run(tmp_path, figure.runs(SETUP)[0])
    assert not gather_full(figure, SETUP, tmp_path).complete
    (folder / "explanations").mkdir()
    Image.new("RGB", (40, 40)).save(folder / "explanations" / "joint_matrix.png")
    collect([figure], SETUP, tmp_path, QUIET)
    assert (tmp_path / "experiments-full" / "joint-matrix" / "result.png").exists()


def test_both_scales_stand_side_by_side_on_the_page(tmp_path: Path, command: CommandLine) -> None:
    words = ["reproduce", "units", "--out", str(tmp_path)]
    full = [*words, "--scale", "full", "--data", SETUP.data, "--collect"]
    command.refuses(full, "holds none of these runs", "--data")
    for number, run in enumerate(UNITS.runs(SETUP)):
        folder = leave_run(tmp_path, run)
        record(folder, "linear", linear_top1=60.0 + number, linear_top5=85.0 + number)
    assert command(full) == 0
    content = json.loads((tmp_path / "experiments-full" / "units" / "result.json").read_text())
    assert content["complete"]
    assert content["cells"][0]["mean"] == 60.0
    assert not (tmp_path / "experiments").exists()
    path = tmp_path / "page.md"
    assert write_page(tmp_path, path) == ["units"]
    text = path.read_text()
    assert "### At the paper's scale" in text
    assert "Not run yet: `imsvd reproduce units --data DIR`." in text
    assert (tmp_path / "images" / "reproduction-units-full.png").exists()
    command.refuses([*words, "--data", "shapes:64", "--collect"], "add --scale full")
