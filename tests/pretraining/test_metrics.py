import json
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from imsvd.errors import InputError
from imsvd.methods import IMSVD, IMSVDSettings, MethodOutput
from imsvd.pretraining.metrics import EpochMetrics, MetricsLog
from imsvd.runs import RunFolder
from tests import gloo
from tests.methods.networks import NormFree
from tests.pretraining import tiny


def output(loss: float) -> MethodOutput:
    value = torch.tensor(loss)
    return MethodOutput(value, {"invariance": value * 2}, (torch.eye(4),) * 2, torch.zeros(4, 8))


def filled(*losses: float) -> EpochMetrics:
    metrics = EpochMetrics()
    method = IMSVD(IMSVDSettings(projector=(8,), units=4), NormFree())
    for loss in losses:
        metrics.update(output(loss), method.statistics(output(loss).embedding))
    return metrics


def summary(metrics: EpochMetrics) -> dict[str, object]:
    method = IMSVD(IMSVDSettings(projector=(8,), units=4), NormFree())
    return metrics.summarize(method, torch.eye(4))


def test_an_epoch_is_the_mean_of_its_steps() -> None:
    record = summary(filled(1.0, 2.0, 6.0))
    assert record["loss"] == 3.0
    assert record["terms"] == {"invariance": 6.0}
    assert set(record["health"]) == {  # type: ignore[call-overload]
        "share_above_0.9",
        "share_above_0.99",
        "dead_units",
        "effective_rank",
    }


def test_an_interrupted_epoch_goes_on() -> None:
    resumed = EpochMetrics()
    resumed.load_state_dict(filled(1.0, 2.0).state_dict())
    resumed.update(output(6.0), {})
    assert summary(resumed)["loss"] == 3.0


def _resumed_on_a_rank() -> tuple[float, float]:
    """Both ranks take the checkpoint that the first one writes, as after a kill."""
    own = 1.0 + 4 * torch.distributed.get_rank()
    metrics = filled(own)
    metrics.gather()
    written = [metrics.state_dict()]
    torch.distributed.broadcast_object_list(written)
    resumed = EpochMetrics()
    resumed.load_state_dict(written[0])
    return float(resumed.sums["terms"]["loss"]), own


def test_every_rank_goes_on_with_its_own_sums() -> None:
    """The first rank writes the checkpoint; the sums of the others must be in it."""
    for found, own in gloo.run(2, _resumed_on_a_rank):
        assert found == own


def test_other_ranks_go_on_with_the_mean() -> None:
    state = filled(1.0).state_dict()
    state["sums"]["terms"]["loss"] = torch.tensor([1.0, 5.0])
    resumed = EpochMetrics()
    resumed.load_state_dict(state)
    assert float(resumed.sums["terms"]["loss"]) == 3.0


def test_the_log_drops_epochs_that_are_trained_again_and_torn_lines(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for epochs in (0, 2):
        log = MetricsLog(run, tiny.config(), first_epoch=epochs)
        for epoch in (epochs + 1, epochs + 2, epochs + 3):
            log.write({"epoch": epoch, "loss": float(epoch), "terms": {"a": 1.0}, "note": "x"})
        log.close()
        with run.metrics_file.open("a") as file:
            file.write('{"epoch": 9, "lo')
    assert [record["epoch"] for record in run.metrics()] == [1, 2, 3, 4, 5]
    assert json.loads(run.metrics_file.read_text().splitlines()[0])["terms"] == {"a": 1.0}


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    log = MetricsLog(RunFolder(tmp_path), tiny.config(), first_epoch=0)
    log.write({"epoch": 1, "loss": 2.5, "terms": {"invariance": 0.5}})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = {tag: events.Scalars(tag)[0] for tag in events.Tags()["scalars"]}
    assert {tag: (event.step, event.value) for tag, event in scalars.items()} == {
        "loss": (1, 2.5),
        "terms/invariance": (1, 0.5),
    }


def test_tensorboard_forgets_epochs_that_are_trained_again(tmp_path: Path) -> None:
    for first, loss in ((0, 2.0), (1, 3.0)):
        log = MetricsLog(RunFolder(tmp_path), tiny.config(), first_epoch=first)
        for epoch in (first + 1, first + 2):
            log.write({"epoch": epoch, "loss": loss})
        log.board.path.rename(log.board.path.with_name(f"events.out.tfevents.{first}"))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 2),
        (2, 3),
        (3, 3),
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_names_the_file_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = MetricsLog(RunFolder(tmp_path), tiny.config(), first_epoch=0)
    log.board.path = Path("/dev/full")
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        log.write({"epoch": 1, "loss": 2.5})
    log.close()
    assert capfd.readouterr().err == ""


def test_wandb_without_the_package_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'imsvd\[wandb\]"):
        MetricsLog(RunFolder(tmp_path), tiny.config("compute.wandb=true"), first_epoch=0)
