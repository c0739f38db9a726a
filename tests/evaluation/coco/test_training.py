"""Training: what every step sees, exact resumption, and that something is learned."""

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from imsvd.checkpoints import load_newest_checkpoint
from imsvd.engine.fabric import Fabric
from imsvd.engine.stopping import StopRequest
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation.coco import DetectionSettings, open_coco, run_coco
from imsvd.evaluation.coco.model import batch_norms, build_detector
from imsvd.evaluation.coco.training import (
    DetectorTraining,
    TrainingStream,
    detector_optimizer,
    mirror,
    training_batches,
)
from tests.engine.processes import ENVIRONMENT
from tests.evaluation.coco import tiny
from tests.pretraining.tiny import CommandLine

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_coco(tmp_path_factory.mktemp("coco"))


def trainer(data: Path, folder: Path, settings: DetectionSettings) -> DetectorTraining:
    torch.manual_seed(0)
    model = build_detector(tiny.encoder(), 2, settings)
    stream = TrainingStream(open_coco(data).train, settings.seed)
    return DetectorTraining(model, stream, settings, folder, Fabric(accelerator="cpu", devices=1))


def test_every_epoch_sees_every_image_with_objects_once(data: Path) -> None:
    stream = TrainingStream(open_coco(data).train, seed=0)
    for epoch in range(3):
        counts = [len(stream[2 * epoch + offset][1]["labels"]) for offset in range(2)]
        assert sorted(counts) == [1, 2]


def test_ranks_share_what_one_process_sees(data: Path) -> None:
    stream = TrainingStream(open_coco(data).train, seed=0)
    alone = list(training_batches(stream, range(1, 4), batch_size=4))
    ranks = [
        training_batches(stream, range(1, 4), batch_size=4, rank=rank, world_size=2)
        for rank in range(2)
    ]
    for whole, *parts in zip(alone, *ranks, strict=True):
        shared = list(itertools.chain(*parts))
        assert len(shared) == 4
        for one, other in zip(whole, shared, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1]["boxes"], other[1]["boxes"])


def test_mirroring_moves_boxes_and_masks_with_the_picture(data: Path) -> None:
    train = open_coco(data).train
    image, target = mirror(train.read(0), train.target(0))
    for box, mask in zip(target["boxes"].int().tolist(), target["masks"], strict=True):
        left, top, right, bottom = box
        assert bool((mask[top:bottom, left:right] == 1).all())
        assert mask.sum() == (bottom - top) * (right - left)
    assert image[:, 5, tiny.WIDTH - 6].tolist() == [220, 30, 30]


def test_norms_do_not_decay(data: Path) -> None:
    model = build_detector(tiny.encoder(), 2, tiny.settings())
    decayed, spared = detector_optimizer(model, tiny.settings()).param_groups
    expected = {parameter for norm in batch_norms(model) for parameter in norm.parameters()}
    assert set(spared["params"]) == expected
    assert (decayed["weight_decay"], spared["weight_decay"]) == (1e-4, 0)


def test_an_interrupted_training_ends_as_if_nothing_had_happened(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny.settings(iterations=3)
    whole = trainer(data, tmp_path / "whole", settings)
    whole.fit(QUIET)
    step = DetectorTraining.train_step
    requests: list[StopRequest] = []

    def remember(self: StopRequest) -> StopRequest:
        requests.append(self)
        return self

    monkeypatch.setattr(StopRequest, "__enter__", remember)

    def stop_after_one(self: DetectorTraining, batch: Any) -> None:
        step(self, batch)
        requests[-1].signal_number = 2

    with monkeypatch.context() as patch:
        patch.setattr(DetectorTraining, "train_step", stop_after_one)
        with pytest.raises(Interrupted):
            trainer(data, tmp_path / "stopped", settings).fit(QUIET)
    saved, _ = load_newest_checkpoint(tmp_path / "stopped")
    assert saved is not None
    assert saved["step"] == 1
    # Whatever was drawn meanwhile must not matter.
    resumed = trainer(data, tmp_path / "stopped", settings)
    torch.rand(7)
    resumed.fit(QUIET)
    assert resumed.step == 3
    assert_equal_weights(whole.detector.state_dict(), resumed.detector.state_dict())
    whole.precise_norms()
    resumed.precise_norms()
    assert_equal_weights(whole.detector.state_dict(), resumed.detector.state_dict())


def assert_equal_weights(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_precise_norms_are_means_over_batches(data: Path, tmp_path: Path) -> None:
    training = trainer(data, tmp_path, tiny.settings("sizes=[32]"))
    norm = training.detector.backbone[1]
    seen: list[Tensor] = []
    training.detector.backbone[0].register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.mean(dim=(0, 2, 3)))
    )
    training.precise_norms()
    assert len(seen) == 2
    assert torch.allclose(norm.running_mean, torch.stack(seen).mean(dim=0), atol=1e-6)
    assert norm.momentum == 0.1


def test_losses_that_explode_are_not_saved(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no longer finite"):
        trainer(data, tmp_path, tiny.settings("lr=1e30", iterations=4)).fit(QUIET)
    assert not list(tmp_path.glob("step-*"))


def test_a_batch_that_ranks_cannot_share_is_refused(data: Path, tmp_path: Path) -> None:
    settings = tiny.settings("batch_size=3")
    model = build_detector(tiny.encoder(), 2, settings)
    stream = TrainingStream(open_coco(data).train, 0)

    class TwoProcesses:
        world_size = 2

    with pytest.raises(InputError, match="batch_size=3 does not divide by 2"):
        DetectorTraining(model, stream, settings, tmp_path, TwoProcesses())  # type: ignore[arg-type]


def arguments(run: Path, data: Path, *more: str) -> list[str]:
    base = ["evaluate", "coco", str(run), str(data), "--scale", "small", "--iterations", "1"]
    sets = ("batch_size=2", "proposals=[20, 20]", "precise_batches=1", *more)
    return [*base, *(part for value in sets for part in ("--set", value))]


def test_the_command_line_trains_measures_and_records(
    command: CommandLine, trained: Path, data: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    assert command(arguments(run, data)) == 0
    assert "coco_mask_ap75" in command.out
    record = (run / "results.jsonl").read_text().splitlines()[-1]
    assert '"coco-adapted"' in record
    assert '"test_images": 3' in record
    (state,) = (run / "coco").iterdir()
    before = sorted(path.stat().st_mtime_ns for path in state.glob("step-*"))
    # Once more: nothing is left to train, and the result is the same.
    assert command(arguments(run, data)) == 0
    assert sorted(path.stat().st_mtime_ns for path in state.glob("step-*")) == before


def test_bad_input_on_the_command_line_is_one_sentence(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    before = set(trained.rglob("*"))
    command.refuses(arguments(trained, tmp_path), "not in COCO's layout")
    command.refuses(arguments(trained, tmp_path, "lrr=1"), "did you mean lr?")
    root = tiny.write_coco(tmp_path / "data")
    (root / "val" / "1.png").unlink()
    command.refuses(arguments(trained, root), "lists 1.png", "is missing from")
    command.refuses(arguments(tmp_path, root), "1.png")
    assert set(trained.rglob("*")) == before


@pytest.mark.slow
def test_two_processes_train_together_and_measure_everything_once(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "imsvd"]
    result = subprocess.run(
        [sys.executable, *launcher, *arguments(run, data, "compute.accelerator=cpu")],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("coco_mask_ap75") == 1
    (record,) = (run / "results.jsonl").read_text().splitlines()
    assert '"test_images": 3' in record


@pytest.mark.slow
def test_two_images_are_learned_by_heart(data: Path, tmp_path: Path) -> None:
    settings = tiny.settings("sizes=[32]", "precise_batches=10", "lr=0.02", iterations=300)
    outcome = run_coco(tiny.encoder(), open_coco(data), tmp_path, settings, QUIET)
    assert outcome.metrics["coco_box_ap50"] > 30
    assert outcome.metrics["coco_mask_ap50"] > 30
