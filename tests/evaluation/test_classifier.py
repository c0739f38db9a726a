import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from imsvd.checkpoints import load_newest_checkpoint
from imsvd.datasets import ShapesSource, Subset, open_source
from imsvd.datasets.decoding import UnreadableImage
from imsvd.distributed import rank
from imsvd.encoder import describe_encoder, load
from imsvd.engine.fabric import Fabric
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation.classification import ClassificationSettings, checked_splits
from imsvd.evaluation.classifier import (
    IGNORED,
    Classifier,
    ClassifierTraining,
    HeldOutImages,
    classifier_optimizer,
)
from imsvd.runs import read_results
from imsvd.views import Batch
from tests import gloo
from tests.engine.test_interruption import assert_same_state
from tests.evaluation.labeled import FREE, FROZEN, QUIET, EightClasses, evaluate, evaluation, shapes
from tests.oracles import softmax_regression
from tests.pretraining import tiny
from tests.pretraining.test_pretrain import write_images

IMAGES = torch.zeros(4, 3, 32, 32)


def test_a_frozen_backbone_takes_no_gradient_and_never_trains(trained: Path) -> None:
    encoder = load(trained)
    network = Classifier(encoder, 7, frozen=True).train()
    assert not any(module.training for module in network.backbone.modules())
    assert network.head.training
    network(IMAGES).sum().backward()
    assert all(parameter.grad is None for parameter in network.backbone.parameters())
    assert network.head.weight.grad is not None
    with torch.no_grad():
        expected = network.head(encoder.eval().backbone(IMAGES))
    assert torch.equal(network(IMAGES), expected)


def test_otherwise_all_of_it_trains(trained: Path) -> None:
    network = Classifier(load(trained), 7, frozen=False)
    assert all(module.training for module in network.modules())
    network(IMAGES + torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert not any(module.training for module in network.eval().modules())


def test_the_head_starts_small_and_unbiased(trained: Path) -> None:
    torch.manual_seed(0)
    head = Classifier(load(trained), 500, frozen=True).head
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert not head.bias.any()


def test_only_what_trains_is_optimized_each_at_its_rate(trained: Path) -> None:
    frozen = classifier_optimizer(Classifier(load(trained), 7, frozen=True), FROZEN)
    assert [group["peak_lr"] for group in frozen.param_groups] == [8 * 32 / 256]
    network = Classifier(load(trained), 7, frozen=False)
    rates = FREE.model_copy(update={"backbone_lr": 0.1, "head_lr": 0.4})
    both = classifier_optimizer(network, rates).param_groups
    assert [group["name"] for group in both] == ["head_lr", "backbone_lr"]
    assert [group["peak_lr"] for group in both] == pytest.approx([0.05, 0.0125])
    assert sum(len(group["params"]) for group in both) == len(list(network.parameters()))
    assert all(group["weight_decay"] == FREE.weight_decay for group in both)


class Guesses(nn.Module):
    """Logits that depend on the picture alone, so that hits can be counted by hand."""

    def forward(self, images: Tensor) -> Tensor:
        weights = torch.randn(3 * 32 * 32, 8, generator=torch.Generator().manual_seed(0))
        return images.flatten(1) @ weights


def held_out(count: int) -> HeldOutImages:
    config = tiny.config()
    return HeldOutImages(
        EightClasses("test", count=count), describe_encoder(config), config.compute
    )


def by_hand(count: int) -> dict[str, float]:
    config, source = tiny.config(), EightClasses("test", count=count)
    view = config.views.views[0]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (view.mean, view.std))
    first = five = 0
    assert source.labels is not None
    for index, label in enumerate(source.labels.tolist()):
        image = (source.read(index).float() / 255 - mean) / std
        scores = Guesses()(image[None])[0].tolist()
        ranked = sorted(range(8), key=lambda place: -scores[place])
        first += ranked[0] == label
        five += label in ranked[:5]
    return {"top1": 100 * first / count, "top5": 100 * five / count, "test_images": count}


def measure(count: int) -> dict[str, float]:
    return held_out(count).measure(Guesses(), Fabric(accelerator="cpu", devices=1))


def test_accuracies_by_hand() -> None:
    assert measure(37) == pytest.approx(by_hand(37))


@pytest.mark.parametrize("count", [37, 2])
def test_the_shares_of_all_ranks_make_the_whole_even_where_some_are_empty(count: int) -> None:
    for found in gloo.run(3, measure, count):
        assert found == pytest.approx(by_hand(count))


def test_small_images_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images = held_out(9)
    expected = images.measure(Guesses(), Fabric(accelerator="cpu", devices=1))
    monkeypatch.delattr(Subset, "read_many")
    assert images.measure(Guesses(), Fabric(accelerator="cpu", devices=1)) == expected


def test_no_more_than_five_classes_have_no_top5() -> None:
    source = ShapesSource("test", count=9)
    source.classes = source.classes[:5]
    source.labels = torch.arange(9) % 5
    config = tiny.config()
    images = HeldOutImages(source, describe_encoder(config), config.compute)
    found = images.measure(Guesses(), Fabric(accelerator="cpu", devices=1))
    assert set(found) == {"top1", "test_images"}


class HalfReadable(ShapesSource):
    """Images of which the second half cannot be read."""

    def read(self, index: int) -> Tensor:
        if index >= len(self) // 2:
            raise UnreadableImage(self.identity(index), "truncated JPEG")
        return super().read(index)

    def read_many(self, indices: Sequence[int]) -> list[Tensor]:
        return [self.read(index) for index in indices]


def hear(size: int) -> str:
    config, source = tiny.config(), HalfReadable("test", count=8, size=size)
    try:
        images = HeldOutImages(source, describe_encoder(config), config.compute)
        images.measure(Guesses(), Fabric(accelerator="cpu", devices=1))
    except InputError as error:
        return str(error)
    return ""


# Kept in memory, and not.
@pytest.mark.parametrize("size", [32, pytest.param(128, marks=pytest.mark.slow)])
def test_a_rank_without_a_readable_image_leaves_none_waiting(size: int) -> None:
    first, second = gloo.run(2, hear, size)
    assert first == second != ""


BOTH = pytest.mark.parametrize("settings", [FROZEN, FREE], ids=["frozen", "everything"])


def training(
    trained: Path, out: Path, settings: ClassificationSettings = FROZEN
) -> ClassifierTraining:
    made = ClassifierTraining(evaluation(trained, settings), out, Fabric(accelerator="cpu"))
    made.prepare(QUIET)
    return made


def history(out: Path) -> list[dict[str, Any]]:
    (folder,) = (out / "evaluations").iterdir()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def state(out: Path) -> dict[str, Any]:
    (folder,) = (out / "evaluations").iterdir()
    found, complaints = load_newest_checkpoint(folder / "checkpoints")
    assert found is not None
    assert complaints == []
    return found


def weights(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = state(out)["weights"]
    return found


@BOTH
def test_the_loss_falls(settings: ClassificationSettings, trained: Path, tmp_path: Path) -> None:
    longer = settings.model_copy(update={"epochs": 5, "batch_size": 16})
    evaluate(trained, tmp_path, longer)
    losses = [record["loss"] for record in history(tmp_path)]
    assert losses[-1] < losses[0] - 0.01


def test_what_is_frozen_does_not_move(trained: Path, tmp_path: Path) -> None:
    made = training(trained, tmp_path)
    before = {name: value.clone() for name, value in made.network.state_dict().items()}
    made.fit(QUIET)
    after = made.network.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"head.weight", "head.bias"}
    assert any("running_mean" in name for name in before)


def test_otherwise_everything_moves_with_the_statistics_of_the_norms(
    trained: Path, tmp_path: Path
) -> None:
    made = training(trained, tmp_path, FREE)
    before = {name: value.clone() for name, value in made.network.state_dict().items()}
    made.fit(QUIET)
    after = made.network.state_dict()
    assert not [name for name in before if torch.equal(before[name], after[name])]


def test_a_step_is_softmax_regression_on_frozen_features(trained: Path, tmp_path: Path) -> None:
    made = training(trained, tmp_path)
    batch = next(iter(made.batches(range(1))))
    head = {name: value.double().numpy() for name, value in made.network.head.state_dict().items()}
    with torch.no_grad():
        features = load(trained).backbone(batch.views[0]).double().numpy()
    labels = made.labels[batch.samples].tolist()
    lr = FROZEN.head_lr * 32 / 256
    weight, bias, loss = softmax_regression.step(
        features, labels, head["weight"], head["bias"], lr, FROZEN.weight_decay
    )
    made.train_step(batch)
    assert float(made.epoch_loss) == pytest.approx(loss, abs=1e-5)
    new = made.network.head
    assert torch.allclose(new.weight.double(), torch.from_numpy(weight), atol=1e-5)
    assert torch.allclose(new.bias.double(), torch.from_numpy(bias), atol=1e-5)


def test_rates_follow_the_schedule_and_the_batch(trained: Path, tmp_path: Path) -> None:
    settings = FREE.model_copy(update={"epochs": 3, "milestones": (1, 2), "backbone_lr": 0.1})
    evaluate(trained, tmp_path, settings)
    rates = [(record["head_lr"], record["backbone_lr"]) for record in history(tmp_path)]
    assert rates == [pytest.approx((f * 0.5 / 8, f * 0.1 / 8)) for f in (1, 0.1, 0.01)]


def stop_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Have SIGTERM arrive in the middle of a step."""
    whole = ClassifierTraining.train_step

    def interrupted(self: ClassifierTraining, batch: Batch) -> None:
        whole(self, batch)
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(ClassifierTraining, "train_step", interrupted)


@BOTH
@pytest.mark.parametrize("step", [2, 3], ids=["inside an epoch", "between epochs"])
def test_resumed_is_the_same_as_never_interrupted(
    step: int, settings: ClassificationSettings, trained: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = evaluate(trained, whole, settings)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(step, patch)
        with pytest.raises(Interrupted):
            evaluate(trained, parts, settings)
    assert state(parts)["step"] == step
    assert read_results(parts) == []
    assert evaluate(trained, parts, settings) == expected
    assert history(parts) == history(whole)
    assert_same_state(state(parts), state(whole))
    assert len(read_results(parts)) == 1


def test_a_finished_evaluation_is_neither_repeated_nor_recorded_twice(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluate(trained, tmp_path)
    monkeypatch.delattr(ClassifierTraining, "loss")
    assert evaluate(trained, tmp_path) == first
    (result,) = read_results(tmp_path)
    assert result["metrics"] == first
    # The result is lost, not the work.
    (tmp_path / "results.jsonl").unlink()
    evaluate(trained, tmp_path)
    assert [record["metrics"] for record in read_results(tmp_path)] == [first]


def test_other_settings_weights_or_images_are_another_evaluation(
    trained: Path, tmp_path: Path
) -> None:
    base = evaluation(trained)
    changed = evaluation(trained)
    with torch.no_grad():
        next(changed.encoder.backbone.parameters()).add_(1)
    others = [
        base._replace(protocol="places205"),
        evaluation(trained, FROZEN.model_copy(update={"head_lr": 7})),
        evaluation(trained, FROZEN, shapes(train=97)),
        evaluation(trained, FROZEN, shapes(test=42)),
        changed,
    ]
    folders = {other.folder(tmp_path) for other in others}
    assert len(folders | {base.folder(tmp_path)}) == 6
    elsewhere = FROZEN.compute.model_copy(update={"workers": 3})
    same = evaluation(trained, FROZEN.model_copy(update={"compute": elsewhere}))
    assert same.folder(tmp_path) == base.folder(tmp_path)


def test_the_last_epoch_counts_and_the_best_is_named_so(trained: Path, tmp_path: Path) -> None:
    made = training(trained, tmp_path)
    made.history = [
        {"epoch": epoch, "loss": 1.0, "top1": top1, "top5": 60.0 + epoch, "test_images": 40}
        for epoch, top1 in ((1, 20.0), (2, 50.0), (3, 30.0))
    ]
    expected = {"linear_top1": 30.0, "linear_top5": 63.0, "linear_best_epoch_top1": 50.0}
    assert made.metrics() == expected
    assert made.details() == {"test_images": 40, "skipped": 1, "best_epoch": 2, "loss": 1.0}


def test_a_result_tells_all_that_is_needed_to_repeat_it(trained: Path, tmp_path: Path) -> None:
    metrics = evaluate(trained, tmp_path)
    (result,) = read_results(tmp_path)
    assert (result["protocol"], result["data"]) == ("linear", "shapes")
    assert set(metrics) == {"linear_top1", "linear_top5", "linear_best_epoch_top1"}
    details = result["details"]
    assert (details["train_images"], details["test_images"], details["skipped"]) == (96, 41, 0)
    settings = ClassificationSettings.model_validate(details["settings"])
    assert settings == FROZEN
    assert (tmp_path / "evaluations" / details["evaluation"]).is_dir()


@pytest.mark.parametrize("side", [32, 100], ids=["memory", "streamed"])
def test_a_bad_training_image_is_ignored_rather_than_given_the_label_of_another(
    side: int, trained: Path, tmp_path: Path
) -> None:
    for split in ("train", "test"):
        write_images(tmp_path / "data" / split, 16, side, classes=2)
    for split in ("train", "test"):
        (tmp_path / "data" / split / "class0" / "0002.png").write_bytes(b"nothing")
    train, test = (open_source(tmp_path / "data", split) for split in ("train", "test"))
    settings = FROZEN.model_copy(
        update={"batch_size": 8, "bad_image_limit": 0.1, "epochs": 1, "head_lr": 0.01}
    )
    made = ClassifierTraining(
        evaluation(trained, settings, checked_splits("data", train, test)),
        tmp_path / "out",
        Fabric(accelerator="cpu"),
    )
    made.prepare(QUIET)
    made.fit(QUIET)
    names = [train.identity(int(place)) for place in (made.labels == IGNORED).nonzero()]
    assert names == ["class0/0002.png"]
    assert made.details()["test_images"] == 15
    assert made.details()["skipped"] == 1
    assert set(made.metrics()) == {"linear_top1", "linear_best_epoch_top1"}
    listed = (tmp_path / "out" / "bad_images.jsonl").read_text()
    assert len(listed.splitlines()) == 1


def test_a_loss_that_explodes_is_not_saved(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no longer finite at step 3; .* lower head_lr=1e\+38 with"
    ):
        evaluate(trained, tmp_path, FROZEN.model_copy(update={"head_lr": 1e38}))
    assert not list(tmp_path.rglob("*.safetensors"))
    assert len(list(tmp_path.rglob("divergence/step.json"))) == 1


def on_every_rank(trained: Path, out: Path, devices: int) -> dict[str, float]:
    os.environ["LOCAL_RANK"] = str(rank())
    compute = FROZEN.compute.model_copy(update={"devices": devices, "accelerator": "cpu"})
    return evaluate(trained, out, FROZEN.model_copy(update={"compute": compute}))


def test_two_processes_do_what_one_does(trained: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    expected = evaluate(trained, one)
    for found in gloo.run(2, on_every_rank, trained, two, 2):
        assert found == expected
    assert [record["test_images"] for record in history(two)] == [41, 41]
    for name, value in weights(one).items():
        assert torch.allclose(weights(two)[name], value, atol=1e-5)
    assert [record["loss"] for record in history(two)] == pytest.approx(
        [record["loss"] for record in history(one)], abs=1e-5
    )
    assert len(read_results(two)) == 1
    # One process goes on where two have stopped: where it runs is no part of what it is.
    part = tmp_path / "part"
    shutil.copytree(two, part)
    (part / "results.jsonl").unlink()
    newest = max(part.rglob("step-*.safetensors"))
    newest.unlink()
    evaluate(trained, part)
    assert max(part.rglob("step-*.safetensors")).name == newest.name
    for name, value in weights(one).items():
        assert torch.allclose(weights(part)[name], value, atol=1e-5)


def test_a_batch_that_processes_cannot_share_is_refused(trained: Path, tmp_path: Path) -> None:
    from imsvd.evaluation.classifier import _require_divisible  # noqa: PLC0415

    with pytest.raises(
        InputError, match="batch_size=32 does not divide by 3 processes; set it to 30"
    ):
        _require_divisible(32, 3)
