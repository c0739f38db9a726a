"""Verdicts on the order, worked out by hand, and results read from the runs of a cluster."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from imsvd.evaluation.classification import LINEAR_RECIPES
from imsvd.evaluation.results import PAPER_SETTINGS, append_result
from imsvd.grid.comparison import Spread, spread
from imsvd.grid.jobs import run_folder
from imsvd.reproduction.experiment import Experiment, PlannedRun, Setup
from imsvd.reproduction.experiments import EXPERIMENTS
from imsvd.reproduction.report import collect, write_page
from imsvd.reproduction.results import (
    Order,
    Point,
    Verdict,
    compare_order,
    gather,
    pooled_deviations,
    training_costs,
)
from imsvd.runs import RunFolder
from tests.oracles.order import kendalls_tau
from tests.pretraining.tiny import CommandLine

SETUP = Setup("full", data="/data/imagenet")
UNITS, COST, TRANSFER = (EXPERIMENTS[name] for name in ("units", "cost", "transfer"))
QUIET = Console(quiet=True)


def point(
    row: str, column: str, paper: float, *ours: float, measure: str = "%", lower: bool = False
) -> Point:
    found = spread(ours)
    assert found is not None
    return Point(row, column, measure, paper, found, lower)


def verdicts(order: Order) -> list[tuple[str, str, Verdict]]:
    return [(c.larger.name, c.smaller.name, c.verdict) for c in order.pairs]


def test_the_deviation_is_pooled_over_the_cells_of_a_measure() -> None:
    points = [
        Point("a", "1", "%", 1, Spread(10, 3.0, 2)),
        Point("a", "2", "%", 2, Spread(10, 1.0, 4)),
        Point("a", "3", "%", 3, Spread(10, None, 1)),
        Point("b", "1", "hours", 1, Spread(10, None, 1)),
    ]
    # (1 · 3² + 3 · 1² + 0) / (1 + 3 + 0) = 3
    assert pooled_deviations(points) == {"%": pytest.approx(3**0.5), "hours": None}


def test_the_four_verdicts() -> None:
    # Deviations 1, 1, 1, 1 (each pair of seeds is √2 apart), so that the pooled one is 1.
    half = 2**-0.5
    points = [
        point("top-1", "a", 60, 50 - half, 50 + half),
        point("top-1", "b", 70, 52 - half, 52 + half),
        point("top-1", "c", 80, 52.5 - half, 52.5 + half),
        point("top-1", "d", 90, 51.75 - half, 51.75 + half),
    ]
    order = compare_order(points, ["columns"])
    assert verdicts(order) == [
        ("top-1 (b)", "top-1 (a)", "kept"),
        ("top-1 (c)", "top-1 (a)", "kept"),
        ("top-1 (d)", "top-1 (a)", "kept"),
        ("top-1 (c)", "top-1 (b)", "kept within the spread"),
        ("top-1 (d)", "top-1 (b)", "reversed within the spread"),
        ("top-1 (d)", "top-1 (c)", "reversed within the spread"),
    ]
    assert list(order.counts.values()) == [3, 1, 2, 0]
    assert order.holds == "within the spread"
    assert order.tau == pytest.approx((4 - 2) / 6)
    (best,) = order.best
    assert best == ("top-1", ("d",), "c", "kept within the spread")
    worse = [*points[:3], point("top-1", "d", 90, 40 - half, 40 + half)]
    assert compare_order(worse, ["columns"]).holds == "no"
    assert compare_order(worse, ["columns"]).best[0].verdict == "another"


def test_one_seed_knows_no_spread() -> None:
    points = [point("x", "a", 1, 5.0), point("x", "b", 2, 5.1), point("x", "c", 3, 5.05)]
    order = compare_order(points, ["columns"])
    assert [pair.verdict for pair in order.pairs] == ["kept", "kept", "reversed"]
    assert order.holds == "no"
    assert order.tau == pytest.approx(1 / 3)


def test_a_tie_of_the_paper_is_not_compared_and_one_of_ours_keeps_nothing() -> None:
    points = [point("x", "a", 2, 7.0), point("x", "b", 2, 1.0), point("x", "c", 1, 7.0)]
    order = compare_order(points, ["columns"])
    assert verdicts(order) == [
        ("x (a)", "x (c)", "reversed within the spread"),
        ("x (b)", "x (c)", "reversed"),
    ]
    assert order.tau == -0.5
    assert order.best[0] == ("x", ("a", "b"), "a", "kept")


def test_directions_and_measures_are_kept_apart() -> None:
    points = [
        point("VICReg", "1024", 62.0, 30.0),
        point("VICReg", "2048", 65.0, 35.0),
        point("IMSVD", "1024", 64.0, 33.0),
        point("IMSVD", "2048", 66.0, 34.0),
        point("hours", "1024", 7.0, 1.0, measure="s", lower=True),
        point("hours", "2048", 8.0, 2.0, measure="s", lower=True),
    ]
    by_row = compare_order(points, ["rows"])
    assert verdicts(by_row) == [
        ("IMSVD (1024)", "VICReg (1024)", "kept"),
        ("IMSVD (2048)", "VICReg (2048)", "reversed"),
    ]
    assert [(best.line, best.ours) for best in by_row.best] == [
        ("1024", "IMSVD"),
        ("2048", "VICReg"),
    ]
    by_column = compare_order(points, ["columns"])
    assert [pair.verdict for pair in by_column.pairs] == ["kept"] * 3
    assert by_column.best[-1] == ("hours", ("1024",), "1024", "kept")
    both = compare_order(points, ["rows", "columns"])
    assert len(both.pairs) == 5
    assert both.tau == pytest.approx(3 / 5)


def test_nothing_to_compare() -> None:
    order = compare_order([point("x", "a", 1, 1.0)], ["rows", "columns"])
    assert order.tau is None
    assert order.holds == "unknown"
    assert order.best == []


@pytest.mark.parametrize("seed", range(5))
def test_tau_is_kendalls(seed: int) -> None:
    draw = random.Random(seed)
    paper = [draw.randrange(6) for _ in range(9)]
    ours = [draw.randrange(6) for _ in range(9)]
    points = [
        point("x", str(number), one, other)
        for number, (one, other) in enumerate(zip(paper, ours, strict=True))
    ]
    assert compare_order(points, ["columns"]).tau == pytest.approx(kendalls_tau(paper, ours))


def leave_run(store: Path, run: PlannedRun, *, epochs: int | None = None) -> Path:
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


def values(experiment: Experiment, store: Path, row: str, column: str) -> list[float | None]:
    content = gather(experiment, SETUP, store)
    (cell,) = (c for c in content["cells"] if (c["row"], c["column"]) == (row, column))
    return [run["value"] for run in cell["runs"]]


def run_of(experiment: Experiment, row: str, column: str) -> PlannedRun:
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
    assert values(UNITS, tmp_path, "top-1", "80") == [70.5]
    assert values(UNITS, tmp_path, "top-5", "80") == [89.9]
    assert values(UNITS, tmp_path, "top-1", "64") == [None]
    result = gather(UNITS, SETUP, tmp_path)
    assert result["runs"] == {"finished": 1, "total": 5}
    assert not result["complete"]


def test_a_run_that_is_not_over_has_no_results(tmp_path: Path) -> None:
    folder = leave_run(tmp_path, run_of(UNITS, "top-1", "80"), epochs=99)
    record(folder, "linear", linear_top1=60.0)
    assert values(UNITS, tmp_path, "top-1", "80") == [None]
    assert gather(UNITS, SETUP, tmp_path)["runs"]["finished"] == 0


def test_time_and_memory_are_what_training_recorded(tmp_path: Path) -> None:
    leave_run(tmp_path, run_of(COST, "IMSVD", "hours"))
    assert values(COST, tmp_path, "IMSVD", "hours") == [10.0]
    assert values(COST, tmp_path, "IMSVD", "memory") == [6.0]
    assert training_costs([]) == {}
    assert training_costs([{"total_seconds": 36.0}]) == {"hours_per_100_epochs": 1.0}


def test_a_published_backbone_is_read_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert values(TRANSFER, tmp_path, "Supervised", "VOC07 mAP") == [None]
    assert not (tmp_path / "results").exists()
    folder = tmp_path / "results" / "torchvision-resnet50"
    folder.mkdir(parents=True)
    record(folder, "voc07", data="voc2007", voc07_map=87.5)
    assert values(TRANSFER, tmp_path, "Supervised", "VOC07 mAP") == [87.5]


def test_a_figure_counts_when_it_is_drawn(tmp_path: Path) -> None:
    figure = EXPERIMENTS["joint-matrix"]
    folder = leave_run(tmp_path, figure.runs(SETUP)[0])
    assert not gather(figure, SETUP, tmp_path)["complete"]
    (folder / "explanations").mkdir()
    Image.new("RGB", (40, 40)).save(folder / "explanations" / "joint_matrix.png")
    collect([figure], SETUP, tmp_path, QUIET)
    assert (tmp_path / "experiments-full" / "joint-matrix" / "result.png").exists()


def test_both_scales_stand_side_by_side_on_the_page(tmp_path: Path, command: CommandLine) -> None:
    full = ["reproduce", "collect", "--out", str(tmp_path), "--data", SETUP.data]
    command.refuses(full, "holds none of these runs", "--data")
    command.refuses([*full, "units"], "holds none of these runs", "--data")
    for number, run in enumerate(UNITS.runs(SETUP)):
        folder = leave_run(tmp_path, run)
        record(folder, "linear", linear_top1=60.0 + number, linear_top5=85.0 + number)
    assert command([*full, "units"]) == 0
    content = json.loads((tmp_path / "experiments-full" / "units" / "result.json").read_text())
    assert content["complete"]
    assert content["cells"][0]["mean"] == 60.0
    assert not (tmp_path / "experiments").exists()
    path = tmp_path / "page.md"
    assert write_page(tmp_path, path) == ["units"]
    text = path.read_text()
    assert "### At the paper's scale" in text
    assert "Not run yet: `imsvd reproduce run units --data DIR`." in text
    assert (tmp_path / "images" / "reproduction-units-full.png").exists()
    # Without names, all experiments with runs are collected: those that share a run of this table.
    assert command(full) == 0
    collected = {folder.name for folder in (tmp_path / "experiments-full").iterdir()}
    assert {"units", "loss-terms"} < collected
    assert not {"knn", "transfer", "cost"} & collected
