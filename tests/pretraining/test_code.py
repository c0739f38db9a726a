"""A code head beside a method: it learns a code, and the method does not notice."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from imsvd.checkpoints import load_newest_checkpoint, random_state
from imsvd.config import Config, override
from imsvd.encoder import load
from imsvd.engine.fabric import Fabric
from imsvd.errors import Interrupted
from imsvd.information import soft_discretize
from imsvd.losses.imsvd import IMSVDLoss
from imsvd.methods import IMSVD, METHODS, Method
from imsvd.methods.code import CodeSettings
from imsvd.methods.settings import SMALLEST_BATCH
from imsvd.networks import projector
from imsvd.pretraining import train
from imsvd.pretraining.code import CodeTraining
from imsvd.recipes import recipe
from imsvd.runs import RunFolder
from tests import gloo
from tests.pretraining import tiny

QUIET = Console(quiet=True)
SMALL = CodeSettings(variables=3, units=4, hidden=8)
CODE = f"code={json.dumps(SMALL.model_dump())}"


def configure(name: str, *settings: str) -> Config:
    sizes = [part for part in tiny.SETTINGS if not part.startswith("method.")]
    steps = [f"training.batch_size={SMALLEST_BATCH}", "training.knn_every=0"]
    data = [f"data.source=shapes:{2 * SMALLEST_BATCH}"]
    config = override(recipe("shapes", name), [*data, *sizes, *steps, *settings])
    return config.model_copy(update={"method": config.method.smallest()})


def final_weights(config: Config, folder: Path) -> tuple[dict[str, Tensor], list[float]]:
    run = RunFolder(folder)
    train(config, run, QUIET)
    state, _ = load_newest_checkpoint(run.checkpoints)
    assert state is not None
    return state["weights"], [record["loss"] for record in run.metrics()]


@pytest.mark.parametrize("name", METHODS)
def test_the_method_trains_to_the_same_bits_with_and_without(name: str, tmp_path: Path) -> None:
    plain = configure(
        name, "optimizer.name=lars", "backbone.options.drop_path_rate=0.3", "code=null"
    )
    without, losses = final_weights(plain, tmp_path / "without")
    beside, same_losses = final_weights(override(plain, [CODE]), tmp_path / "beside")
    assert losses == same_losses
    assert without.keys() == beside.keys()
    for key, value in without.items():
        assert torch.equal(value, beside[key]), key
    encoder = load(tmp_path / "beside")
    assert encoder.description.units == (4, 4, 4)
    assert encoder.codes(torch.rand(2, 3, 32, 32)).shape == (2, 3)


def test_mixed_precision_does_not_couple_them_either(tmp_path: Path) -> None:
    plain = configure("vicreg", "compute.precision=bf16-mixed", "code=null")
    without, _ = final_weights(plain, tmp_path / "without")
    beside, _ = final_weights(override(plain, [CODE]), tmp_path / "beside")
    assert all(torch.equal(value, beside[key]) for key, value in without.items())


def training(config: Config, settings: CodeSettings = SMALL) -> CodeTraining:
    return CodeTraining(settings, config, 6, Fabric(accelerator="cpu", devices=1))


def batches(count: int, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    images = [torch.randn(size, 6, generator=generator) for _ in range(count)]
    return [(image, image + 0.1 * torch.randn(size, 6, generator=generator)) for image in images]


def test_a_step_is_that_of_the_loss_written_out() -> None:
    config = tiny.config()
    code = training(config)
    head = projector((6, 8, 12))
    head.load_state_dict(code.method.projector.state_dict())
    decayed = [weight for weight in head.parameters() if weight.ndim > 1]
    others = [weight for weight in head.parameters() if weight.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    loss = IMSVDLoss(4, joint="within", off_diagonal_weight=15.0)
    temperature = 1.0
    for share, pair in zip((0.5, 1.0), batches(2), strict=True):
        code.step(pair, share * config.peak_lr, share)
        optimizer.zero_grad()
        loss(head(pair[0]) / temperature, head(pair[1]) / temperature).loss.backward()
        temperature = 0.1 ** min(1.0, share / 0.9)
        for group in optimizer.param_groups:
            group["lr"] = share * 2e-3
        optimizer.step()
    for key, value in head.state_dict().items():
        torch.testing.assert_close(code.method.projector.state_dict()[key], value, msg=key)
    saved = SMALL.as_method().saved_state(code.weights())
    torch.testing.assert_close(saved["projector.3.weight"], 100 * head.state_dict()["3.weight"])
    torch.testing.assert_close(saved["projector.0.weight"], head.state_dict()["0.weight"])


def test_neither_gradients_nor_random_numbers_leave_the_head() -> None:
    before = random_state()["torch"]
    code = training(tiny.config())
    first, second = (view.requires_grad_() for view in batches(1)[0])
    code.step((first, second), 0.1, 0.5)
    assert first.grad is None
    assert second.grad is None
    assert torch.equal(random_state()["torch"], before)
    assert not torch.equal(
        training(override(tiny.config(), ["seed=1"])).weights()["projector.0.weight"],
        training(tiny.config()).weights()["projector.0.weight"],
    )


def without_norm(code: CodeTraining) -> CodeTraining:
    code.method.projector[1] = nn.Identity()  # a CPU rank would have statistics of its own
    return code


def _on_a_rank(rows: int) -> tuple[dict[str, Tensor], dict[str, float]]:
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    code = without_norm(training(tiny.config()))
    for number, (first, second) in enumerate(batches(3)):
        own = slice(rank * rows, (rank + 1) * rows)
        code.step((first[own], second[own]), 0.1, 0.5)
        if number == 1:  # all ranks resume from what the first one wrote
            code.gather()
            written = [code.state_dict()]
            if torch.distributed.is_initialized():
                torch.distributed.broadcast_object_list(written)
            code = without_norm(training(tiny.config()))
            code.load_state_dict(written[0])
    return code.weights(), code.summarize()


def test_two_processes_train_the_head_on_the_global_batch() -> None:
    whole, measured = _on_a_rank(16)
    for weights, found in gloo.run(2, _on_a_rank, 8):
        for key, value in whole.items():
            torch.testing.assert_close(weights[key], value, atol=1e-5, rtol=1e-4, msg=key)
        assert found == pytest.approx(measured, abs=1e-4)


def test_an_epoch_shows_decided_agreeing_and_shared() -> None:
    code = training(tiny.config())
    pair = batches(1, size=64)[0]
    logits = [code.method.projector(view) for view in pair]
    first, second = (soft_discretize(100 * view, (4, 4, 4)).view(64, 3, 4) for view in logits)
    code.step(pair, 1e-12, 0.5)
    found = code.summarize()
    assert found["share_decided"] == pytest.approx(float((first.amax(-1) > 0.9).float().mean()))
    same = first.argmax(-1) == second.argmax(-1)
    assert found["share_agreeing"] == pytest.approx(float(same.float().mean()))
    joint = torch.nn.functional.one_hot(first.argmax(-1), 4).double()
    nats = []
    for one, two in ((0, 1), (0, 2), (1, 2)):
        p = joint[:, one].T @ joint[:, two] / 64
        expected = p.sum(1, keepdim=True) * p.sum(0, keepdim=True)
        used = [(p.sum(axis) > 0).sum() - 1 for axis in (0, 1)]
        kept = p > 0
        nats.append(
            float((p[kept] * (p[kept] / expected[kept]).log()).sum() - used[0] * used[1] / 128)
        )
    assert found["shared_nats"] == pytest.approx(sum(nats) / 3, abs=1e-6)
    assert code.summarize() == {}


def test_a_head_that_diverges_is_refused() -> None:
    code = training(tiny.config())
    assert code.is_finite()
    code.step((torch.full((4, 6), float("nan")), torch.ones(4, 6)), 0.1, 0.5)
    assert not code.is_finite()


def test_a_run_with_a_code_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("vicreg", CODE)
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    train(config, whole, QUIET)

    def stop(self: Method, progress: float) -> None:
        # The code head is a method too, and a second signal would end the process at once.
        if progress == 3 / 4 and not isinstance(self, IMSVD):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Method, "after_step", stop)
    with pytest.raises(Interrupted):
        train(config, parts, QUIET)
    monkeypatch.undo()
    train(config, parts, QUIET)
    assert parts.encoder_weights.read_bytes() == whole.encoder_weights.read_bytes()
    assert [r["health"] for r in parts.metrics()] == [r["health"] for r in whole.metrics()]


def test_a_method_without_variables_gets_a_code_that_other_commands_use(
    tmp_path: Path, command: tiny.CommandLine
) -> None:
    shared = ("method.projector", "backbone", "optimizer", "training", "compute")
    sets = [part for part in tiny.SETTINGS if part.startswith(shared)]
    arguments = ["pretrain", "shapes:128", "--recipe", "shapes", "--method", "vicreg"]
    arguments += ["--out", str(tmp_path / "run")]
    for setting in (*sets, "code.variables=5", "code.units=4", "code.hidden=16"):
        arguments += ["--set", setting]
    assert command(arguments) == 0, command.err
    (head,) = (line for line in command.out.splitlines() if line.lstrip().startswith("epoch"))
    assert {"code", "same", "nats", "rank", "kNN"} <= set(head.split())
    assert all(len(line) <= 80 for line in command.out.splitlines() if "/2" in line)
    assert (
        command(["codes", str(tmp_path / "run"), "shapes:20", "--out", str(tmp_path / "c.parquet")])
        == 0
    ), command.err
    assert load(tmp_path / "run").description.units == (4,) * 5


def test_a_code_takes_the_place_of_imsvd_s_variables_when_it_is_switched_on(tmp_path: Path) -> None:
    config = tiny.config("method.projector=[16, 16, 16]", "code.variables=2", "code.hidden=8")
    train(config, RunFolder(tmp_path / "run"), QUIET)
    assert load(tmp_path / "run").description.projector == (8, 8)
    assert config.code == CodeSettings(variables=2, hidden=8)
    assert override(config, ["code=null"]).code is None
