"""Whole commands on the imagined GPU, each with the results of a CPU."""

from __future__ import annotations

import importlib
import math
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from rich.console import Console

from imsvd.codes import write_codes
from imsvd.datasets.drawn.scene_files import write_scenes
from imsvd.datasets.voc import open_voc
from imsvd.demo import run_demo
from imsvd.discretizing import discretize
from imsvd.encoder import load
from imsvd.engine.loop import Training
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation.classifier import evaluate_by_training
from imsvd.evaluation.coco import open_coco, run_coco
from imsvd.evaluation.linear_probe import fitting_device, linear_probe
from imsvd.evaluation.protocols import evaluate_knn, evaluate_linear_probe
from imsvd.evaluation.voc07 import SVMSettings, run_voc07
from imsvd.explanations import explain
from imsvd.explanations.parts import PARTS
from imsvd.index import Index
from imsvd.pretraining.run import Pretraining, train
from imsvd.replay import replay
from imsvd.runs import RunFolder
from tests.evaluation.coco import tiny as coco
from tests.evaluation.labeled import FREE, FROZEN, evaluation
from tests.imagined_gpu.device import NAME
from tests.imagined_gpu.fabric import imagined_fabric
from tests.pretraining import tiny
from tests.test_replay import plant

QUIET = Console(quiet=True)
DATA = "shapes:128"
ONE_EPOCH = ("training.epochs=1", "optimizer.warmup_epochs=0")

SLOW_TO_DRAW = {"galleries", "embeddings"}
"""Parts that only draw what others compute."""

Switch = Callable[..., None]


@pytest.fixture
def on_gpu(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> Switch:
    """Send commands to the imagined GPU from the call on."""

    def switch(*, mixed: bool = False) -> None:
        modules = ("pretraining.run", "discretizing.run", "evaluation.protocols")
        for module in (*modules, "evaluation.classifier"):
            monkeypatch.setattr(
                f"imsvd.{module}.launch", lambda _: imagined_fabric(gpu, mixed=mixed)
            )
        monkeypatch.setattr(
            "imsvd.evaluation.coco.protocol.launch", lambda _: imagined_fabric(gpu, mixed=mixed)
        )
        for module in (
            "codes",
            "evaluation.features",
            "evaluation.linear_probe",
            "evaluation.voc07",
            "explanations.parts",
            "index.encoding",
        ):
            # By its full name: a function of imsvd.evaluation has the name of its module.
            found = importlib.import_module(f"imsvd.{module}")
            monkeypatch.setattr(found, "encoding_device", lambda: gpu)

    return switch


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch on a CPU."""
    folder = tmp_path_factory.mktemp("cpu") / "run"
    train(tiny.config(*ONE_EPOCH, data=DATA), RunFolder(folder), QUIET)
    return folder


@pytest.fixture
def run(on_cpu: Path, tmp_path: Path) -> Path:
    """A copy to evaluate."""
    return Path(shutil.copytree(on_cpu, tmp_path / "run"))


def test_a_run_learns_and_resumes_as_on_a_cpu(
    on_cpu: Path, on_gpu: Switch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu()
    folder, whole = RunFolder(tmp_path), Training.train_step

    def interrupted(training: Any, batch: Any) -> None:
        whole(training, batch)
        if training.step == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "train_step", interrupted)
    config = tiny.config(*ONE_EPOCH, data=DATA)
    with pytest.raises(Interrupted):
        train(config, folder, QUIET)
    train(config, folder, QUIET)
    (ours,), (theirs,) = folder.metrics(), RunFolder(on_cpu).metrics()
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert "knn_20" in ours["knn"]


def test_mixed_precision_stays_close(on_cpu: Path, on_gpu: Switch, tmp_path: Path) -> None:
    on_gpu(mixed=True)
    train(tiny.config(*ONE_EPOCH, data=DATA), RunFolder(tmp_path), QUIET)
    (ours,), (theirs,) = RunFolder(tmp_path).metrics(), RunFolder(on_cpu).metrics()
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05)


def test_a_head_learns_as_on_a_cpu(run: Path, on_gpu: Switch, tmp_path: Path) -> None:
    options: dict[str, Any] = {"bits": 8, "units": 4, "views": 2, "steps": 3}
    options["settings"] = ["method.projector=[16, 16]", "compute.workers=0"]
    options["console"] = QUIET
    discretize(run, DATA, tmp_path / "cpu", **options)
    on_gpu()
    discretize(run, DATA, tmp_path / "gpu", **options)
    theirs, ours = (RunFolder(tmp_path / name).metrics() for name in ("cpu", "gpu"))
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours, theirs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_the_size_of_a_code_is_chosen(
    run: Path, on_gpu: Switch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imsvd.discretizing.run.TRIAL_STEPS", 2)
    monkeypatch.setattr("imsvd.discretizing.run.TRIAL_HIDDEN", 16)
    on_gpu()
    settings = ["compute.workers=0"]
    discretize(run, DATA, tmp_path / "out", bits=8, steps=2, settings=settings, console=QUIET)
    trials = RunFolder(tmp_path / "out").trials()
    assert len(trials) > 1
    assert load(tmp_path / "out").description.units


def test_a_bad_step_is_found_and_replayed(
    on_gpu: Switch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu()
    monkeypatch.setattr("imsvd.replay.launch", lambda _: imagined_fabric(torch.device(NAME, 0)))
    plant(monkeypatch, Pretraining, "projector.0.weight", 1)
    with pytest.raises(InputError, match=r"began in step 2: output of projector\.0 \(Linear\)"):
        train(tiny.config(*ONE_EPOCH, data=DATA), RunFolder(tmp_path / "run"), QUIET)
    assert replay(tmp_path / "run").differing == []


def test_the_demo_runs_to_its_report(
    on_gpu: Switch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ["discreteness", "meaning", "galleries", "joint"]
    monkeypatch.setattr("imsvd.demo.explain", partial(explain, only=parts))
    on_gpu()
    settings = [f"data.source={DATA}", *tiny.SETTINGS, *ONE_EPOCH, "training.knn_every=0"]
    run_demo(tmp_path / "run", QUIET, settings)
    assert (tmp_path / "run" / "demo.png").exists()


def test_an_index_has_the_codes_of_a_cpu(run: Path, on_gpu: Switch, tmp_path: Path) -> None:
    expected = Index.build(run, "shapes:40", tmp_path / "cpu.index")
    on_gpu()
    found = Index.build(run, "shapes:40", tmp_path / "gpu.index")
    assert found.codes().tolist() == expected.codes().tolist()


def test_machines_fit_the_same_features(run: Path, on_gpu: Switch, tmp_path: Path) -> None:
    scenes = open_voc(write_scenes(tmp_path / "voc", images=60, size=64, layout="voc"))
    settings = SVMSettings(costs=(1,), max_iterations=20, jobs=1)
    expected, _ = run_voc07(load(run), scenes, QUIET, settings)
    on_gpu()
    found, _ = run_voc07(load(run), scenes, QUIET, settings)
    assert found == pytest.approx(expected, abs=1)


def test_an_encoder_takes_images_of_the_host(run: Path, gpu: torch.device) -> None:
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    encoder = load(run)
    with torch.no_grad():
        expected = encoder.codes(images), encoder(images)
        encoder.to(gpu)
        found = encoder.codes(images), encoder(images)
    assert all(value.device.type == NAME for value in found)
    assert all(
        torch.equal(ours.cpu(), theirs) for ours, theirs in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_knn_finds_the_same_neighbors(distance: Any, run: Path, on_gpu: Switch) -> None:
    expected = evaluate_knn(run, DATA, distance=distance)
    on_gpu()
    assert evaluate_knn(run, DATA, distance=distance) == expected


def test_the_linear_probe_reads_the_same_features(run: Path, on_gpu: Switch) -> None:
    expected = evaluate_linear_probe(run, DATA)
    on_gpu()
    assert evaluate_linear_probe(run, DATA) == pytest.approx(expected, abs=1)


def test_the_linear_probe_fits_on_the_device(gpu: torch.device, on_gpu: Switch) -> None:
    on_gpu()
    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    assert fitting_device(features) == gpu
    labels = (features[:, 0] > 0).long()
    assert linear_probe(features, labels, features, labels)["linear_probe_top1"] > 90


@pytest.mark.parametrize("protocol", ["linear", "semi"])
def test_classifiers_train_on_the_device(protocol: str, run: Path, on_gpu: Switch) -> None:
    settings = FROZEN if protocol == "linear" else FREE
    on_gpu(mixed=True)
    found = evaluate_by_training(evaluation(run, settings), run, DATA, QUIET)
    assert all(math.isfinite(value) for value in found.values())


def test_codes_are_those_of_a_cpu(run: Path, on_gpu: Switch, tmp_path: Path) -> None:
    written = [tmp_path / "cpu.parquet", tmp_path / "gpu.parquet"]
    write_codes(run, DATA, written[0], embedding=True)
    on_gpu()
    write_codes(run, DATA, written[1], embedding=True)
    first, second = (parquet.read_table(path).to_pydict() for path in written)
    assert first == second


def test_an_explanation_is_that_of_a_cpu(run: Path, on_gpu: Switch) -> None:
    parts = [name for name in PARTS if name not in SLOW_TO_DRAW]
    judge = f"untrained:{run}"
    expected = explain(run, "shapes:40", only=parts, judge=judge)["parts"]
    shutil.rmtree(run / "explanations")
    on_gpu()
    found = explain(run, "shapes:40", only=parts, judge=judge)["parts"]
    assert found.keys() == expected.keys()
    for name, value in _numbers(found):
        if name.endswith("per_second"):
            continue
        assert value == pytest.approx(dict(_numbers(expected))[name], rel=1e-3, abs=1e-3), name


def _numbers(values: Any, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(values, dict):
        values = values.items()
    elif isinstance(values, list):
        values = enumerate(values)
    elif isinstance(values, float):
        yield place, values
        return
    else:
        return
    for name, value in values:
        yield from _numbers(value, f"{place}/{name}")


@pytest.mark.parametrize("mixed", [False, True])
def test_a_detector_trains_and_detects(mixed: bool, on_gpu: Switch, tmp_path: Path) -> None:
    on_gpu(mixed=mixed)
    data = open_coco(coco.write_coco(tmp_path / "data"))
    settings = coco.settings("compute.workers=0", iterations=2)
    outcome = run_coco(coco.encoder(), data, tmp_path / "out", settings, QUIET)
    assert outcome.details["test_images"] == 3
