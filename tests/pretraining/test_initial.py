"""Training that continues from a pretrained encoder: its weights, what stays fixed, what is refused."""

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch.nn.modules.batchnorm import _BatchNorm

import imsvd
from imsvd.checkpoints import load_newest_checkpoint
from imsvd.config import Config, override
from imsvd.encoder import load, open_encoder
from imsvd.errors import InputError, Interrupted
from imsvd.methods import Method, build_method
from imsvd.networks import build_backbone, fix_statistics, freeze_stages, synchronize_norms
from imsvd.pretraining import train
from imsvd.pretraining.initial import initial_backbone
from imsvd.pretraining.optimizers import build_optimizer, set_learning_rate
from imsvd.pretraining.pretrain import configure
from imsvd.runs import RunFolder
from imsvd.views.settings import CIFAR_MEAN
from tests.engine.processes import ENVIRONMENT
from tests.pretraining import tiny
from tests.pretraining.test_pretrain import write_images

QUIET = Console(quiet=True)
SETTINGS = [part for part in tiny.SETTINGS if not part.startswith("backbone.")]


def continued(trained: Path, *settings: str, data: str | Path = "shapes:128") -> Config:
    return configure(data, recipe_name="shapes", init=trained, settings=[*SETTINGS, *settings])


def arguments_of(trained: Path, out: Path, *settings: str) -> list[str]:
    sets = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    chosen = ["--recipe", "shapes", "--init", str(trained)]
    return ["pretrain", "shapes:128", *chosen, "--out", str(out), *sets]


@pytest.mark.parametrize(
    ("name", "count", "last"),
    [
        ("tf_efficientnet_lite0", 3, "blocks.1."),
        ("resnet10t", 2, "layer1."),
        ("vit_tiny_patch16_224", 5, "blocks.3."),
        ("convnext_atto", 1, "stem."),
        ("regnetx_002", 2, "s1."),
    ],
)
def test_leading_stages_and_their_statistics_stay_fixed(name: str, count: int, last: str) -> None:
    backbone = timm.create_model(name, num_classes=0)
    before = copy.deepcopy(backbone.state_dict())
    freeze_stages(backbone, count)
    frozen = [name for name, value in backbone.named_parameters() if not value.requires_grad]
    assert any(name.startswith(last) for name in frozen)
    backbone.train()(torch.randn(2, 3, 224, 224)).sum().backward()
    kept = [key for key in before if not key.endswith("num_batches_tracked")]
    after = backbone.state_dict()
    moved = [key for key in kept if not torch.equal(before[key], after[key])]
    assert not any(key.startswith(last) for key in moved)
    assert all("running" in key for key in moved)
    gradients = [key for key, value in backbone.named_parameters() if value.grad is not None]
    assert gradients
    assert not any(key.startswith(last) or key in frozen for key in gradients)
    # The networks with statistics still learn those of the stages that follow.
    assert bool(moved) == any("running" in key for key in before)


def test_fixed_stages_compute_what_they_do_in_evaluation() -> None:
    backbone = timm.create_model("resnet10t", num_classes=0, channels=(8, 8, 8, 8))
    for _ in range(3):
        backbone.train()(torch.randn(8, 3, 32, 32))
    images, norm = torch.randn(4, 8, 5, 5), backbone.get_submodule("layer1.0.bn1")
    expected = norm.eval()(images)
    assert not torch.equal(copy.deepcopy(norm).train()(images), expected)
    freeze_stages(backbone, 2)
    torch.testing.assert_close(backbone.train().get_submodule("layer1.0.bn1")(images), expected)


@pytest.mark.parametrize("name", ["resnet10t", "tf_efficientnet_lite0"])
def test_fixed_statistics_survive_copies_and_synchronization(name: str) -> None:
    backbone = timm.create_model(name, num_classes=0)
    fix_statistics(backbone)
    for network in (backbone, copy.deepcopy(backbone), synchronize_norms(backbone)):
        norms = [module for module in network.train().modules() if isinstance(module, _BatchNorm)]
        assert len(norms) > 10
        assert not any(module.training for module in norms)
        before = [
            module.running_mean.clone() for module in norms if module.running_mean is not None
        ]
        network(torch.randn(2, 3, 32, 32)).sum().backward()
        assert all(
            torch.equal(a, m.running_mean)
            for a, m in zip(before, norms, strict=True)
            if m.running_mean is not None
        )
        assert all(module.weight.grad is not None for module in norms)


def test_stages_that_do_not_exist_are_refused() -> None:
    backbone = timm.create_model("resnet10t", num_classes=0)
    with pytest.raises(InputError, match=r"has 5 stages, its stem included; choose at most 4\."):
        freeze_stages(backbone, 5)
    freeze_stages(torchvision.models.resnet18(), 0)
    with pytest.raises(InputError, match="is for networks of timm"):
        freeze_stages(torchvision.models.resnet18(), 1)


def test_backbone_size_and_normalization_are_the_encoder_s(trained: Path) -> None:
    config = configure("shapes:128", init=trained)
    encoder = load(trained)
    assert config.backbone == encoder.description.backbone
    assert [view.size for view in config.views.views] == [32, 32]
    assert config.views.views[0].mean == config.views.views[1].mean == CIFAR_MEAN
    assert config.views.evaluation_size is None
    assert config.init is not None
    assert config.init.encoder == str(trained.resolve())
    assert config.optimizer.name == "adamw"
    assert config.training.epochs < configure("shapes:128").training.epochs
    backbone = initial_backbone(config).state_dict()
    for key, value in encoder.backbone.state_dict().items():
        assert torch.equal(backbone[key], value), key
    assert configure("shapes:128", init=trained, size=24).views.views[1].size == 24


def test_a_named_recipe_keeps_its_optimizer_and_length(trained: Path) -> None:
    named = configure("shapes:128", recipe_name="imagenet", init=trained)
    assert named.optimizer == imsvd_recipe("imagenet").optimizer
    assert named.training == imsvd_recipe("imagenet").training
    assert named.views.views[0].size == 32


def imsvd_recipe(name: str) -> Config:
    return configure("shapes:128", recipe_name=name)


def test_the_backbone_learns_slowly_and_does_not_decay(trained: Path) -> None:
    config = continued(trained, "init.backbone_lr=0.25", "init.frozen_stages=2")
    method = build_method(config.method, initial_backbone(config), 128)
    optimizer = build_optimizer(method, config)
    set_learning_rate(optimizer, 0.8, 0.8)
    found = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found[parameter] = group["lr"], group["weight_decay"]
    for key, parameter in method.named_parameters():
        if key.startswith("backbone.") and parameter.requires_grad:
            assert found.pop(parameter) == (0.2, 0.0), key
        elif parameter.requires_grad:
            decay = config.optimizer.weight_decay if parameter.ndim > 1 else 0.0
            assert found.pop(parameter) == (0.8, decay), key
        else:
            assert parameter not in found
    assert not found


def test_a_continued_run_says_whether_it_helped(
    trained: Path, tmp_path: Path, command: tiny.CommandLine
) -> None:
    run = tmp_path / "run"
    assert command(arguments_of(trained, run, "init.frozen_stages=2")) == 0, command.err
    assert re.search(
        r"kNN-20 on 100 images: \d+\.\d % before training, \d+\.\d % after; ", command.out
    )
    records = RunFolder(run).metrics()
    assert [record["before"] for record in records] == [records[0]["before"]] * 2
    assert records[0]["before"]["images"] == 100
    before, after = (
        load_file(trained / "encoder.safetensors"),
        load_file(run / "encoder.safetensors"),
    )
    for key, value in after.items():
        fixed = key.startswith(("backbone.conv1", "backbone.bn1", "backbone.layer1"))
        if fixed:
            assert torch.equal(value, before[key]), key
    assert not torch.equal(
        after["backbone.layer4.0.conv1.weight"], before["backbone.layer4.0.conv1.weight"]
    )
    load(run)
    # Its encoder is one to continue from as well.
    again = configure("shapes:128", recipe_name="shapes", init=run, settings=SETTINGS)
    initial_backbone(again)
    command.refuses(["evaluate", "knn", f"untrained:{run}", "shapes:128"], str(trained))


def test_a_continued_run_resumes_exactly(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = continued(trained, "init.frozen_stages=1")
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    train(config, whole, QUIET)

    def stop(self: Method, progress: float) -> None:
        if progress == 3 / 8:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Method, "after_step", stop)
    with pytest.raises(Interrupted):
        train(config, parts, QUIET)
    monkeypatch.undo()
    train(config, parts, QUIET)
    assert parts.encoder_weights.read_bytes() == whole.encoder_weights.read_bytes()
    assert parts.metrics()[-1]["before"] == whole.metrics()[-1]["before"]


def test_other_weights_under_the_same_name_are_noticed(trained: Path, tmp_path: Path) -> None:
    encoder = Path(shutil.copytree(trained, tmp_path / "encoder"))
    config = continued(encoder)
    run = RunFolder(tmp_path / "run")
    train(config, run, QUIET)
    weights = load_file(encoder / "encoder.safetensors")
    weights["backbone.conv1.weight"] = weights["backbone.conv1.weight"] + 1
    save_file(weights, encoder / "encoder.safetensors", {"epoch": "2"})
    with pytest.raises(InputError, match=r"init\.weights='[0-9a-f]{16}', not"):
        train(continued(encoder), run, QUIET)
    with pytest.raises(InputError, match="are not those that this run began with"):
        train(config, RunFolder(tmp_path / "other"), QUIET)


def test_two_processes_continue_one_run(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("compute.devices=2", "init.frozen_stages=1")
    result = subprocess.run(
        [sys.executable, "-m", "imsvd", *arguments_of(trained, run, *settings)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("before training") == 1
    assert RunFolder(run).metrics()[-1]["before"]["images"] == 100
    before, after = (
        load_file(trained / "encoder.safetensors"),
        load_file(run / "encoder.safetensors"),
    )
    assert torch.equal(after["backbone.bn1.running_mean"], before["backbone.bn1.running_mean"])


def test_unlabeled_images_are_held_out_to_say_whether_it_helped(
    trained: Path, tmp_path: Path, command: tiny.CommandLine
) -> None:
    data, run = write_images(tmp_path / "data", 600), tmp_path / "run"
    short = ("training.epochs=1", "optimizer.warmup_epochs=0", "compute.workers=0")
    arguments = arguments_of(trained, run, *short)
    arguments[1] = str(data)
    assert command(arguments) == 0, command.err
    found = "Share of 50 held-out images whose views find each other: "
    assert found in command.out.replace("\n", " ")
    last = RunFolder(run).metrics()[-1]
    assert 0 <= last["self_retrieval"] <= 100
    assert last["step"] == 540 // 32
    state, _ = load_newest_checkpoint(run / "checkpoints")
    assert state is not None
    assert state["extra"]["before"] == last["before"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("training.knn_every=1", "measured: that takes labels, a test split of at least 50 images"),
        ("training.knn_every=0", "measured, because training.knn_every is 0."),
    ],
)
def test_a_continued_run_that_was_not_measured_says_so(
    setting: str, reason: str, trained: Path, tmp_path: Path, command: tiny.CommandLine
) -> None:
    short = ("training.epochs=1", "optimizer.warmup_epochs=0", "compute.workers=0", setting)
    arguments = arguments_of(trained, tmp_path / "run", *short)
    arguments[1] = str(write_images(tmp_path / "data", 40))
    assert command(arguments) == 0, command.err
    assert f"Whether training helped was not {reason}" in " ".join(command.out.split())


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--set", "backbone.name=resnet34"], ["backbone.name='resnet34'", "contradicts --init"]),
        (
            ["--set", "backbone.options.channels=[8, 8, 8, 16]"],
            ["do not fit the backbone", "layer4.0.conv1.weight"],
        ),
        (["--set", "init.frozen_stages=9"], ["leaves nothing to train"]),
        (["--init", "untrained:runs/a"], ["has not learned anything"]),
        (["--init", "timm:vit_tiny_patch16_224:random"], ["cannot take images of 32 pixels"]),
    ],
)
def test_what_does_not_fit_the_encoder_is_refused(
    options: Sequence[str],
    phrases: Sequence[str],
    trained: Path,
    tmp_path: Path,
    command: tiny.CommandLine,
) -> None:
    arguments = [*arguments_of(trained, tmp_path / "run"), *options]
    if "timm:" in options[-1]:
        arguments += ["--size", "32"]
    command.refuses(arguments, *phrases)


def test_settings_of_init_need_it(tmp_path: Path, command: tiny.CommandLine) -> None:
    plain = tiny.arguments("shapes:128", tmp_path / "run")
    command.refuses([*plain, "--set", "init.frozen_stages=1"], "`imsvd pretrain --init`")
    command.refuses([*plain, "--size", "24"], "--size is the size for --init")


def test_every_key_that_does_not_fit_is_listed(trained: Path) -> None:
    config = continued(trained)
    other = override(config, ["backbone={name: vit_tiny_patch16_224}"])
    expected = build_backbone(other.backbone).state_dict()
    with pytest.raises(InputError) as caught:
        initial_backbone(other)
    for key in (*expected, *open_encoder(str(trained)).backbone.state_dict()):
        assert key in str(caught.value)


def test_python_continues_as_the_command_does(trained: Path, tmp_path: Path) -> None:
    encoder = imsvd.pretrain(
        "shapes:128",
        tmp_path / "run",
        recipe="shapes",
        init=trained,
        size=24,
        settings=SETTINGS,
        console=QUIET,
    )
    assert encoder.description.size == 24
