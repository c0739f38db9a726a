"""The transfer protocols and figures on a real, tiny run, and what counts as measured."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from imsvd.datasets.drawn.scene_files import write_scenes
from imsvd.errors import InputError
from imsvd.evaluation.protocols import evaluate
from imsvd.evaluation.results import read_results
from imsvd.grid.jobs import data_fingerprint, run_folder, write_outcome
from imsvd.reproduction import measuring
from imsvd.reproduction.experiments import EXPERIMENTS, Setup
from imsvd.reproduction.measuring import (
    Measurement,
    measure_all,
    measurements,
    read_measurement,
)
from tests.grid import made_up, small

QUIET = Console(quiet=True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return small.write_data(tmp_path / "data")


@pytest.fixture
def wanted(trained: Path, data: Path, tmp_path: Path) -> dict[str, Measurement]:
    """The measurements of the transfer of IMSVD, whose run is a copy of a tiny one."""
    setup = Setup("cpu", str(data))
    found: dict[str, Measurement] = {
        measurement.protocol: measurement
        for measurement in measurements(EXPERIMENTS["transfer"], setup)
        if measurement.job.config.method.name == "imsvd"
    }
    folder = run_folder(tmp_path / "store", found["coco"].job)
    shutil.copytree(trained, folder)
    write_outcome(folder, made_up.outcome(data=data_fingerprint(str(data))))
    return found


def test_every_protocol_is_wanted_once_per_encoder(data: Path) -> None:
    found = measurements(EXPERIMENTS["transfer"], Setup("cpu", str(data), (0, 1)))
    assert len(found) == 3 * 4 * 2
    assert measurements(EXPERIMENTS["units"], Setup("cpu", str(data))) == []
    (figure,) = measurements(EXPERIMENTS["galleries"], Setup("cpu", str(data), (0, 1)))
    assert figure.asked == {"data": str(data), "parts": ["galleries"]}


def test_stand_ins_are_measured_kept_and_not_repeated(
    wanted: dict[str, Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setattr(measuring, "SCENES", 60)
    monkeypatch.setattr(measuring, "write_scenes", partial(write_scenes, size=64))
    quick: dict[str, dict[str, Any]] = {
        "voc07": {"jobs": 1},
        "coco": {
            "iterations": 2,
            "settings": ["sizes=[64]", "mask_channels=8", "precise_batches=1"],
        },
    }

    def evaluate_quickly(protocol: str, run: Path, data: Any, **options: Any) -> dict[str, float]:
        return evaluate(protocol, run, data, **options, **quick.get(protocol, {}))

    monkeypatch.setattr(measuring, "evaluate", evaluate_quickly)
    assert measure_all(list(wanted.values()), store, QUIET) == []
    names = {
        "voc07": {"voc07_map"},
        "places205": {"places205_top1"},
        "coco": {"coco_box_ap", "coco_mask_ap75"},
    }
    for protocol, measurement in wanted.items():
        metrics = read_measurement(measurement, store)
        assert metrics is not None
        assert names[protocol] <= set(metrics)
    folder = run_folder(store, wanted["coco"].job)
    recorded = [record["protocol"] for record in read_results(folder)]
    assert "places205-adapted" in recorded
    assert "places205" not in recorded
    assert measure_all(list(wanted.values()), store, QUIET) == []
    assert [record["protocol"] for record in read_results(folder)] == recorded


def test_only_what_was_asked_counts(wanted: dict[str, Measurement], tmp_path: Path) -> None:
    store = tmp_path / "store"
    measurement = wanted["voc07"]
    path = run_folder(store, measurement.job) / "reproduction" / "voc07.json"
    path.parent.mkdir()
    content = {"asked": dict(measurement.asked), "metrics": {"voc07_map": 81.5}}
    path.write_text(json.dumps(content))
    assert read_measurement(measurement, store) == {"voc07_map": 81.5}
    other = measurement._replace(asked={**measurement.asked, "data": "/data/voc"})
    assert read_measurement(other, store) is None
    path.write_text(json.dumps(content)[:-9])
    assert read_measurement(measurement, store) is None


def test_a_protocol_that_cannot_be_run_is_told_and_the_others_go_on(
    wanted: dict[str, Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> dict[str, float]:
        raise InputError("there are no scenes.")

    monkeypatch.setattr(
        measuring,
        "_MEASURE",
        {"coco": refuse, "voc07": lambda *_: {"voc07_map": 1.0}, "places205": refuse},
    )
    failures = measure_all(list(wanted.values()), tmp_path / "store", QUIET)
    assert len(failures) == 2
    assert failures[0].startswith("coco of imsvd")
    assert failures[0].endswith("there are no scenes.")
    assert read_measurement(wanted["voc07"], tmp_path / "store") == {"voc07_map": 1.0}
    unfinished = wanted["voc07"]._replace(protocol="coco")
    (run_folder(tmp_path / "store", unfinished.job) / "outcome.json").unlink()
    assert measure_all([unfinished], tmp_path / "store", QUIET) == []
