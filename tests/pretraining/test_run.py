import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from imsvd.checkpoints import load_newest_checkpoint
from imsvd.config import override
from imsvd.datasets import open_source
from imsvd.distributed import rank
from imsvd.engine import loop
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import launch
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation import features
from imsvd.methods import METHODS, Method, build_method
from imsvd.methods.settings import SMALLEST_BATCH
from imsvd.networks import build_backbone
from imsvd.pretraining import run as pretraining
from imsvd.pretraining import train
from imsvd.pretraining.fitness import check_precision
from imsvd.pretraining.metrics import median_epoch_seconds
from imsvd.pretraining.online_knn import OnlineKNN
from imsvd.recipes import recipe
from imsvd.runs import RunFolder
from imsvd.views import Batch
from tests import gloo
from tests.engine.processes import ENVIRONMENT, saved_step
from tests.pretraining import tiny
from tests.pretraining.test_pretrain import write_images

QUIET = Console(quiet=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_signal_stops_after_the_step_it_arrives_in(
    number: signal.Signals, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: Method, progress: float) -> None:
        if progress == step / 8:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Method, "after_step", send)
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        train(tiny.config(), RunFolder(tmp_path / "run"), QUIET)
    assert caught.value.exit_code == 128 + number
    assert saved_step(tmp_path / "run") == step
    assert signal.getsignal(number) == handler


class Clock:
    """Stands still but for what a test says that things take."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("interrupted_at", [None, 3, 4, 7])
def test_epochs_take_as_long_with_an_interruption_as_without(
    interrupted_at: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, check = Clock(), OnlineKNN.__call__
    steps = 0

    def after_step(self: Method, progress: float) -> None:
        nonlocal steps
        steps += 1
        clock.now += 1
        if steps == interrupted_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def slow_check(self: OnlineKNN, backbone: nn.Module) -> dict[str, float]:
        clock.now += 100
        return check(self, backbone)

    for module in (loop, pretraining):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(Method, "after_step", after_step)
    monkeypatch.setattr(OnlineKNN, "__call__", slow_check)
    run = RunFolder(tmp_path / "run")
    if interrupted_at is not None:
        with pytest.raises(Interrupted):
            train(tiny.config(), run, QUIET)
        clock.now += 1000
    train(tiny.config(), run, QUIET)
    assert [record["total_seconds"] for record in run.metrics()] == [4, 8]
    assert median_epoch_seconds(run.metrics()) == 4


@pytest.mark.parametrize("name", ["save_encoder", "save_checkpoint"])
def test_a_kill_between_the_last_files_still_gives_the_last_encoder(
    name: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    module = pretraining if name == "save_encoder" else loop
    save = getattr(module, name)
    calls = 0

    def save_and_die(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        save(*arguments)
        if calls == 2:
            raise SystemError

    monkeypatch.setattr(module, name, save_and_die)
    with pytest.raises(SystemError):
        train(tiny.config(), run, QUIET)
    monkeypatch.undo()
    train(tiny.config(), run, QUIET)
    assert run.encoder_weights.read_bytes() == (trained / "encoder.safetensors").read_bytes()


def test_streamed_images_and_stochastic_depth_resume_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_images(tmp_path / "data", 24, side=100)
    config = tiny.config(
        "training.batch_size=8",
        "backbone.options.drop_path_rate=0.5",
        "compute.workers=1",
        data=data,
    )
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    train(config, whole, QUIET)

    def stop(self: Method, progress: float) -> None:
        if progress == 2 / 6:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Method, "after_step", stop)
    with pytest.raises(Interrupted):
        train(config, parts, QUIET)
    monkeypatch.undo()
    train(config, parts, QUIET)
    assert parts.encoder_weights.read_bytes() == whole.encoder_weights.read_bytes()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_resumes_exactly_inside_an_epoch_of_unlabeled_images(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_images(tmp_path / "data", 3 * SMALLEST_BATCH)
    settings = [part for part in tiny.SETTINGS if not part.startswith("method.")]
    sizes = ["training.epochs=3", f"training.batch_size={SMALLEST_BATCH}"]
    config = override(recipe("shapes", name), [f"data.source={data}", *settings, *sizes])
    config = config.model_copy(update={"method": config.method.smallest()})
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    train(config, whole, QUIET)
    take_step = pretraining.Pretraining.train_step

    def stop(self: pretraining.Pretraining, batch: Batch) -> None:
        take_step(self, batch)
        if self.step == 7:  # of 9
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(pretraining.Pretraining, "train_step", stop)
    with pytest.raises(Interrupted):
        train(config, parts, QUIET)
    monkeypatch.undo()
    train(config, parts, QUIET)
    states = [load_newest_checkpoint(run.checkpoints)[0] for run in (whole, parts)]
    assert states[0] is not None
    assert states[1] is not None
    for key, value in states[0]["weights"].items():
        assert torch.equal(value, states[1]["weights"][key]), key
    assert [record["loss"] for record in whole.metrics()] == [
        record["loss"] for record in parts.metrics()
    ]


def test_unlabeled_images_train_without_knn(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 40)
    run = RunFolder(tmp_path / "run")
    train(tiny.config(data=data), run, QUIET)
    assert [record.get("knn") for record in run.metrics()] == [None, None]


def test_labeled_images_get_knn_when_it_is_due(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    train(tiny.config("training.epochs=3", "training.knn_every=2"), run, QUIET)
    measured = [record.get("knn") for record in run.metrics()]
    assert measured[0] is None
    assert set(measured[1]) == set(measured[2]) == {"knn_20"}  # type: ignore[arg-type]


def test_a_test_split_without_labels_is_not_asked(tmp_path: Path) -> None:
    write_images(tmp_path / "train", 20, classes=2)
    write_images(tmp_path / "test", 5)
    config = tiny.config(data=tmp_path)
    online = OnlineKNN(config, open_source(tmp_path), Fabric(accelerator="cpu", devices=1))
    assert online.queries.labels is not None
    names = [
        {source.identity(index) for index in range(len(source))}
        for source in (online.bank, online.queries)
    ]
    assert (len(names[0]), len(names[1])) == (16, 4)
    assert not names[0] & names[1]


def test_features_that_are_no_numbers_get_a_sentence_with_a_remedy(tmp_path: Path) -> None:
    write_images(tmp_path, 20, classes=2)
    online = OnlineKNN(
        tiny.config(data=tmp_path), open_source(tmp_path), Fabric(accelerator="cpu", devices=1)
    )
    head = nn.LazyLinear(4)
    backbone = nn.Sequential(nn.Flatten(), head)
    online(backbone)
    nn.init.constant_(head.weight, float("nan"))
    with pytest.raises(InputError, match=r"training features contain NaN.*lower optimizer\.lr"):
        online(backbone)


def test_two_processes_train_one_run_with_one_log(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("compute.devices=2", "compute.checkpoint_minutes=1e-9")
    command = [sys.executable, "-m", "imsvd", *tiny.arguments("shapes:128", run, *settings)]
    result = subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=240
    )
    assert result.returncode == 0, result.stderr
    assert [record["epoch"] for record in RunFolder(run).metrics()] == [1, 2]
    assert result.stdout.count("Encoder: ") == 1
    assert len(list((run / "tensorboard").iterdir())) == 1
    assert saved_step(run) == 8
    # One process goes on where two have stopped: where it runs is no part of what it is.
    shutil.copytree(run, tmp_path / "copy")
    for file in (tmp_path / "copy" / "checkpoints").glob("step-000000008.*"):
        file.unlink()
    assert 4 <= saved_step(tmp_path / "copy") < 8  # ranks agree on saving every two seconds
    train(tiny.config(), RunFolder(tmp_path / "copy"), QUIET)
    assert saved_step(tmp_path / "copy") == 8
    assert [record["epoch"] for record in RunFolder(tmp_path / "copy").metrics()] == [1, 2]


def test_a_run_without_scaled_gradients_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaling:
        """A precision that, as fp16's, has a state and takes no empty one."""

        def state_dict(self) -> dict[str, float]:
            return {"scale": 1.0}

        def load_state_dict(self, state: dict[str, float]) -> None:
            assert state["scale"] == 1.0

    run, source = RunFolder(tmp_path / "run"), open_source("shapes:128")
    train(tiny.config(), run, QUIET)
    training = pretraining.Pretraining(tiny.config(), run, launch(tiny.config().compute), source)
    plain = training.fabric.strategy.precision
    monkeypatch.setattr(type(training.fabric.strategy), "precision", Scaling())
    assert not plain.state_dict()
    assert training.resume() == []
    assert training.step == 8


def test_a_backbone_that_cannot_take_the_views_is_refused_before_training(tmp_path: Path) -> None:
    config = tiny.config("backbone={name: vit_tiny_patch16_224}")
    with pytest.raises(
        InputError, match=r"'vit_tiny_patch16_224' cannot take images of \d+ pixels"
    ):
        train(config, RunFolder(tmp_path / "run"), QUIET)


def test_what_needs_double_precision_is_refused_where_there_is_none() -> None:
    apple = torch.device("mps")
    for name in METHODS:
        config = recipe("shapes", name)
        method = build_method(config.method, build_backbone(config.backbone), 10_000)
        check_precision(method, config, torch.device("cpu"))
        if name == "corinfomax":
            with pytest.raises(InputError, match="corinfomax computes in float64"):
                check_precision(method, config, apple)
        else:
            check_precision(method, config, apple)


def test_a_trained_run_outlives_its_checkpoints(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(run.checkpoints)
    encoder, log = run.encoder_weights.read_bytes(), run.metrics_file.read_bytes()
    train(run.config(), run, Console(width=200))
    assert "is already trained: 2 epochs" in capsys.readouterr().out
    with pytest.raises(InputError, match="holds a run with seed=0, not 7"):
        train(override(run.config(), ["seed=7"]), run, QUIET)
    assert (run.encoder_weights.read_bytes(), run.metrics_file.read_bytes()) == (encoder, log)


def test_a_training_in_one_phase_alone_is_refused_until_something_is_saved(tmp_path: Path) -> None:
    settings = [part for part in tiny.SETTINGS if not part.startswith("method.")]
    config = override(recipe("shapes", "la"), [*settings, "method.warmup_epochs=2"])
    run = RunFolder(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(InputError, match=r"leaves nothing of training\.epochs=2"):
            train(config, run, QUIET)
        run.begin(config)  # as a grid does before it starts the process


class Statistic(nn.Module):
    """Returns pixels times a buffer, of which each rank has its own, as of unsynchronized BatchNorm."""

    num_features = 3

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 1 - rank(), 1 + rank()]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3)) * self.get_buffer("scale")


def knn_of_a_rank(batch: int) -> tuple[dict[str, float], int]:
    config = tiny.config("training.knn_samples=150", data="shapes:200")
    online = OnlineKNN(config, open_source("shapes:200"), Fabric(accelerator="cpu", devices=1))
    features.BATCH_SIZE = batch
    seen: list[int] = []
    found = online(Statistic(), lambda done, _: seen.append(done))
    return found, max(seen)


def test_every_rank_encodes_its_share_of_the_knn_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "BATCH_SIZE", 32)
    alone, total = knn_of_a_rank(32)
    parts = gloo.run(2, knn_of_a_rank, 32)
    assert [found for found, _ in parts] == [alone, alone]
    assert sum(count for _, count in parts) == total
    assert all(count < total for _, count in parts)


def test_a_compiled_backbone_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    whole = nn.Module.compile

    def compile_without_a_compiler(module: nn.Module) -> None:
        compiled.append(module)
        whole(module, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", compile_without_a_compiler)
    settings = ("training.epochs=1", "optimizer.warmup_epochs=0", "training.knn_every=0")
    losses = []
    for switch in ("true", "false"):
        run = RunFolder(tmp_path / switch)
        train(tiny.config(*settings, f"compute.compile={switch}"), run, QUIET)
        losses.append(run.metrics()[-1]["loss"])
    assert len(compiled) == 1
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
