"""The loop by itself, on a network of one weight."""

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning_fabric.plugins import MixedPrecision
from rich.console import Console
from torch import Tensor, nn

from imsvd.checkpoints import load_newest_checkpoint, save_checkpoint, seed_step
from imsvd.distributed import rank
from imsvd.engine.fabric import Fabric
from imsvd.engine.loop import Training, TrainingPlan
from imsvd.engine.stopping import Agreement, StopRequest
from imsvd.errors import InputError, Interrupted
from tests import gloo

QUIET = Console(quiet=True)


class Line(Training[int]):
    """Fits y = 2x, one number a step, and keeps a diary."""

    divergence_remedy = "lower lr"

    def __init__(self, folder: Path, images: str = "numbers", **changes: Any) -> None:
        network = nn.Linear(1, 1, bias=False)
        nn.init.ones_(network.weight)
        self.diary: list[str] = []
        self.draws: list[float] = []
        plan = TrainingPlan(folder, folder / "checkpoints", images, 3, 4, 0, 60.0)
        fabric = Fabric(accelerator="cpu", devices=1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        super().__init__(fabric, network, optimizer, plan._replace(**changes))

    def batches(self, steps: range) -> Iterable[int]:
        return steps

    def loss(self, batch: int) -> Tensor:
        self.draws.append(float(torch.rand(())))
        x = torch.full((1, 1), batch / 12)
        error: Tensor = self.model(x) - 2 * x
        return error.square().sum()

    def set_learning_rates(self) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.step)

    def begin_epoch(self) -> None:
        self.diary.append(f"begin {self.epoch}")

    def end_epoch(self) -> None:
        self.diary.append(f"end {self.epoch}")

    def extra_state(self) -> dict[str, Any]:
        return {"diary": self.diary}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.diary = state["diary"]

    @property
    def weight(self) -> float:
        return self.trained.get_parameter("weight").item()


class Stopping(Line):
    """Receives a stop signal in its sixth step."""

    def after_step(self) -> None:
        if self.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)


def test_epochs_begin_and_end_and_every_epoch_is_saved(tmp_path: Path) -> None:
    training = Line(tmp_path)
    assert training.fit(QUIET)
    assert training.diary == ["begin 0", "end 1", "begin 1", "end 2", "begin 2", "end 3"]
    state, complaints = load_newest_checkpoint(tmp_path / "checkpoints")
    assert state is not None
    assert (state["step"], complaints) == (12, [])
    assert not Line(tmp_path).fit(QUIET)


def test_a_stopped_training_resumes_to_the_same_weights(tmp_path: Path) -> None:
    whole = Line(tmp_path / "whole")
    whole.fit(QUIET)
    with pytest.raises(Interrupted):
        Stopping(tmp_path / "parts").fit(QUIET)
    state, _ = load_newest_checkpoint(tmp_path / "parts" / "checkpoints")
    assert state is not None
    assert state["step"] == 6
    resumed = Line(tmp_path / "parts")
    resumed.fit(QUIET)
    assert resumed.weight == whole.weight
    assert resumed.diary == ["begin 0", "end 1", "begin 1", "begin 1", "end 2", "begin 2", "end 3"]


def test_resuming_keeps_the_layout_of_momentum(tmp_path: Path) -> None:
    def training() -> Line:
        made = Line(tmp_path)
        network = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        made.trained, made.optimizer = network, made.fabric.setup_optimizers(optimizer)
        return made

    first, resumed = training(), training()
    first.trained(torch.ones(1, 2, 3, 3)).sum().backward()
    first.optimizer.step()
    first.save()
    resumed.resume()
    (expected, _), (found, _) = (
        [values["momentum_buffer"] for values in one.optimizer.optimizer.state.values()]
        for one in (first, resumed)
    )
    assert found.stride() == expected.stride() != found.contiguous().stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


class StoppingOnOneRank(Line):
    """Receives a stop signal on the second of two ranks."""

    def after_step(self) -> None:
        if self.step == 2 and rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def stop_on_one_rank(folder: str) -> tuple[int, list[int]]:
    """Return the step at which this rank has stopped, and the reductions of every step."""
    training, reduced = StoppingOnOneRank(Path(folder)), list[int]()
    whole, reduce = training.train_step, dist.all_reduce

    def train_step(batch: int) -> None:
        reduced.append(0)
        whole(batch)

    def counted(*arguments: Any) -> Any:
        if reduced:
            reduced[-1] += 1
        return reduce(*arguments)

    training.train_step = train_step  # type: ignore[method-assign]
    dist.all_reduce = counted  # type: ignore[assignment]
    with pytest.raises(Interrupted):
        training.fit(QUIET)
    return training.step, reduced


def test_ranks_agree_at_the_first_step_and_then_every_few_seconds(tmp_path: Path) -> None:
    # Short steps do not ask again before the epoch ends; there, nobody saves weights that are no numbers.
    assert gloo.run(2, stop_on_one_rank, str(tmp_path)) == [(4, [1, 0, 0, 3])] * 2


def test_slow_steps_ask_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100, 5))
    monkeypatch.setattr("imsvd.engine.stopping.is_distributed", lambda: True)
    monkeypatch.setattr("imsvd.engine.stopping.largest_of", lambda values, _: values)
    monkeypatch.setattr("imsvd.engine.stopping.time.monotonic", lambda: float(next(clock)))
    agreement = Agreement(torch.device("cpu"))
    assert [agreement.ask(2, last=False) for _ in range(3)] == [2, 2, 2]


class Scaled(Line):
    """Trains as with float16: a scaler drops steps that overflow."""

    def __init__(self, folder: Path, bad: tuple[int, ...], scale: float = 2.0**16) -> None:
        super().__init__(folder)
        self.bad = bad
        precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))
        self.fabric.strategy.precision = precision

    def loss(self, batch: int) -> Tensor:
        return super().loss(batch) * (float("inf") if batch in self.bad else 1)


def test_a_step_that_a_scaler_drops_does_not_end_the_training(tmp_path: Path) -> None:
    assert Scaled(tmp_path, bad=(5,)).fit(QUIET)


def test_a_scaler_that_drops_every_step_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no longer finite at step 4"):
        Scaled(tmp_path, bad=(0, 1, 2, 3), scale=4.0).fit(QUIET)


def test_a_checkpoint_is_written_when_its_time_has_come(tmp_path: Path) -> None:
    class Breaking(Line):
        def after_step(self) -> None:
            if self.step == 3:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        Breaking(tmp_path, checkpoint_minutes=0).fit(QUIET)
    assert {path.name for path in (tmp_path / "checkpoints").glob("*.safetensors")} == {
        "step-000000001.safetensors",
        "step-000000002.safetensors",
    }


def test_a_loss_that_is_no_number_is_refused_and_not_saved(tmp_path: Path) -> None:
    class Exploding(Line):
        def loss(self, batch: int) -> Tensor:
            return super().loss(batch) * (float("nan") if batch == 6 else 1)

    with pytest.raises(
        InputError, match=r"no longer finite at step 8; .* — lower lr\. It began in step 7"
    ):
        Exploding(tmp_path).fit(QUIET)
    state, _ = load_newest_checkpoint(tmp_path / "checkpoints")
    assert state is not None
    assert state["step"] == 4


def test_a_full_device_is_one_sentence(tmp_path: Path) -> None:
    class TooLarge(Line):
        def loss(self, batch: int) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(InputError, match="cannot hold a step; lower batch_size"):
        TooLarge(tmp_path).fit(QUIET)


def test_half_written_files_are_cleared_away(tmp_path: Path) -> None:
    Line(tmp_path).fit(QUIET)
    before = sorted(tmp_path.rglob("*"))
    for path in (tmp_path / ".encoder.json.1.tmp", tmp_path / "checkpoints" / ".step-2.1.tmp"):
        path.write_text("half")
    Line(tmp_path).fit(QUIET)
    assert sorted(tmp_path.rglob("*")) == before


def test_other_images_are_refused(tmp_path: Path) -> None:
    Line(tmp_path).fit(QUIET)
    with pytest.raises(InputError, match=r"are not those that .* was trained on so far"):
        Line(tmp_path, images="others").fit(QUIET)


def test_a_checkpoint_of_an_earlier_version_gets_a_sentence(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoints", 3, {"step": 3, "data": "numbers", "weights": {}})
    with pytest.raises(InputError, match="begun by an earlier version of imsvd"):
        Line(tmp_path).fit(QUIET)


def test_a_checkpoint_of_another_training_is_not_used(tmp_path: Path) -> None:
    Line(tmp_path, identity={"seed": 1, "gone": 5}).fit(QUIET)
    own = Line(tmp_path, identity={"seed": 0, "new": 3})
    with pytest.raises(InputError, match="is of another training: its seed is 1, not 0"):
        own.fit(QUIET)
    # Settings that only one version of the code knows tell nothing.
    assert not Line(tmp_path, identity={"seed": 1, "new": 3}).fit(QUIET)


def test_a_checkpoint_without_a_part_gets_a_sentence(tmp_path: Path) -> None:
    Line(tmp_path).fit(QUIET)
    state, _ = load_newest_checkpoint(tmp_path / "checkpoints")
    assert state is not None
    whole = dict(state)
    del state["optimizer"]
    save_checkpoint(tmp_path / "checkpoints", 12, state)
    line = Line(tmp_path)
    (complaint,) = line.resume()
    assert "lacks optimizer" in complaint
    assert line.step == 8
    save_checkpoint(tmp_path / "checkpoints", 12, {**whole, "weights": {"other": whole["step"]}})
    with pytest.raises(InputError, match="does not fit this training"):
        Line(tmp_path).resume()


def test_without_a_good_checkpoint_the_folder_is_named(tmp_path: Path) -> None:
    Line(tmp_path).fit(QUIET)
    for path in (tmp_path / "checkpoints").glob("*.safetensors"):
        path.write_bytes(json.dumps({}).encode())
    with pytest.raises(InputError, match=f"No good checkpoint is left; remove {tmp_path}"):
        Line(tmp_path).fit(QUIET)


def test_steps_can_draw_from_seed_and_step_alone(tmp_path: Path) -> None:
    training = Line(tmp_path)
    training.seed_every_step = True
    training.fit(QUIET)
    seed_step(0, 5, 0)
    assert training.draws[5] == float(torch.rand(()))
    seed_step(0, 5, 1)
    assert training.draws[5] != float(torch.rand(()))


def test_a_second_signal_acts_at_once() -> None:
    acted: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: acted.append(number))
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert (stop.signal_number, acted) == (signal.SIGTERM, [])
            signal.raise_signal(signal.SIGTERM)
            assert acted == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
