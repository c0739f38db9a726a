"""What every recipe must be: buildable, re-runnable, and honest about what it costs."""

import inspect
from typing import Any

import pytest
import torch

from imsvd.config import Config
from imsvd.errors import InputError
from imsvd.methods import METHODS, IMSVDSettings, build_method
from imsvd.methods.pcl import PCLSettings
from imsvd.methods.settings import in_proportion
from imsvd.methods.swav import SwAVSettings
from imsvd.methods.wmse import WMSESettings
from imsvd.networks import build_backbone, feature_width
from imsvd.pretraining.pretrain import configure
from imsvd.recipes import RECIPES, SCALES, fit_to_images, recipe

PHASED = [name for name, (kind, _) in METHODS.items() if kind.counted_in_epochs]


@pytest.mark.parametrize("name", RECIPES)
def test_the_docstring_gives_command_and_hardware(name: str) -> None:
    text = inspect.getdoc(RECIPES[name]) or ""
    assert "\nCommand: " in text
    assert "\nHardware: " in text
    command = next(line for line in text.splitlines() if line.startswith("Command: "))
    assert "imsvd" in command
    assert f"--recipe {name}" in command or "imsvd demo" in command


@pytest.mark.parametrize("method_name", METHODS)
@pytest.mark.parametrize("name", RECIPES)
def test_the_network_takes_the_views(name: str, method_name: str) -> None:
    config = recipe(name, method_name)
    assert config.method.name == method_name
    size = config.views.views[0].size
    images = 1_281_167 if name == "imagenet" else 10_000
    with torch.device("meta"):
        method = build_method(config.method, build_backbone(config.backbone), images)
        features = method.backbone(torch.empty(4, 3, size, size))
    assert features.shape == (4, feature_width(method.backbone))


@pytest.mark.parametrize(
    ("name", "method_name"),
    [("shapes", "imsvd"), ("folder-cpu", "imsvd"), *(("cifar10-cpu", name) for name in METHODS)],
)
def test_a_recipe_for_a_cpu_takes_a_step_on_one(name: str, method_name: str) -> None:
    config = recipe(name, method_name)
    method = build_method(config.method, build_backbone(config.backbone), 10_000)
    batch = 64 if method_name == "wmse" else 4
    views = [torch.randn(batch, 3, view.size, view.size) for view in config.views.every]
    output = method(views, torch.arange(batch))
    output.loss.backward()
    assert torch.isfinite(output.loss)


@pytest.mark.parametrize("method_name", [name for name in METHODS if name != "imsvd"])
def test_a_method_has_one_learning_rate_on_a_cpu_or_that_of_imsvd(method_name: str) -> None:
    names = [name for name in RECIPES if name not in SCALES]
    configs = [recipe(name, method_name) for name in names]
    same = [c.optimizer == recipe(name).optimizer for c, name in zip(configs, names, strict=True)]
    assert all(same) or len({config.peak_lr for config in configs}) == 1


@pytest.mark.parametrize("epochs", [2, 3, 10, 38, 100])
@pytest.mark.parametrize(("phase", "whole"), [(10, 38), (8, 38), (4, 38), (1, 1)])
def test_a_phase_and_what_follows_it_keep_their_place(phase: int, whole: int, epochs: int) -> None:
    assert 1 <= in_proportion(phase, whole, epochs) < epochs
    assert in_proportion(10, 38, 38) == 10
    assert in_proportion(0, 38, epochs) == 0


@pytest.mark.parametrize("method_name", PHASED)
@pytest.mark.parametrize("name", RECIPES)
def test_every_phase_of_a_method_is_reached(name: str, method_name: str) -> None:
    config = recipe(name, method_name)
    for setting in config.method.counted_in_epochs:
        assert 1 <= getattr(config.method, setting) < config.training.epochs / 2


@pytest.mark.parametrize("method_name", PHASED)
def test_phases_shrink_with_the_training_and_do_not_grow(method_name: str) -> None:
    (name,) = METHODS[method_name][0].counted_in_epochs

    def phase(*settings: str) -> int:
        config = configure(
            "shapes", recipe_name="cifar10-cpu", method=method_name, settings=settings
        )
        return int(getattr(config.method, name))

    published = phase()
    assert phase("training.epochs=19", "optimizer.warmup_epochs=1") == published // 2
    assert phase("training.epochs=380") == published
    assert phase("training.epochs=19", f"method.{name}=7", "optimizer.warmup_epochs=1") == 7


@pytest.mark.parametrize("method_name", ["la", "pcl"])
def test_a_training_that_ends_in_its_first_phase_is_refused(method_name: str) -> None:
    config = recipe("cifar10-cpu", method_name)
    config.method.require_epochs(11)
    with pytest.raises(InputError, match=r"method\.warmup_epochs=.* leaves nothing of training"):
        config.method.require_epochs(8)


@pytest.mark.parametrize("images", [30, 200, 600, 3000, 10**6])
@pytest.mark.parametrize("method_name", METHODS)
@pytest.mark.parametrize("name", ["cifar10-cpu", "folder-cpu", "imagenet"])
def test_fewer_images_fit_every_method(name: str, method_name: str, images: int) -> None:
    config = fit_to_images(recipe(name, method_name), images)
    assert config.training.batch_size <= max(2, images // 4)
    with torch.device("meta"):
        build_method(config.method, build_backbone(config.backbone), images)
    if isinstance(config.method, WMSESettings):
        assert config.training.batch_size % config.method.whitening_size == 0
    if isinstance(config.method, SwAVSettings):
        assert config.method.freeze_steps <= 2 * images / config.training.batch_size
    if isinstance(config.method, PCLSettings):
        coarse, middle, fine = config.method.clusters
        assert coarse < middle < fine <= images / 10
    if images == 10**6 and name != "imagenet":
        assert config == recipe(name, method_name)


@pytest.mark.parametrize("name", RECIPES)
def test_two_calls_give_the_same(name: str) -> None:
    assert recipe(name) == recipe(name)


def test_the_published_settings_are_those_of_the_paper() -> None:
    config = recipe("imagenet")
    assert config.backbone.name == "resnet50"
    assert config.method == IMSVDSettings(projector=(8192, 8160), units=80)
    assert config.peak_lr == pytest.approx(4.8)
    assert (config.training.epochs, config.training.batch_size) == (100, 2048)


PUBLISHED: dict[str, dict[str, Any]] = {
    "vicreg": {
        "method.projector": (8192,) * 3,
        "optimizer.name": "lars",
        "optimizer.weight_decay": 1e-6,
    }
    | {"method.invariance_weight": 25, "method.variance_weight": 25, "method.covariance_weight": 1},
    "barlow_twins": {"method.projector": (8192,) * 3, "method.redundancy_weight": 0.0051}
    | {"optimizer.name": "lars", "optimizer.lr": 0.2, "optimizer.vector_lr_ratio": 0.0048 / 0.2},
    "simclr": {"method.projector": (2048, 128), "method.temperature": 0.1}
    | {"training.batch_size": 4096, "optimizer.name": "lars", "optimizer.lr": 0.3},
    "moco_v2": {
        "method.projector": (2048, 128),
        "method.queue_length": 65536,
        "method.momentum": 0.999,
    }
    | {"method.temperature": 0.2, "training.batch_size": 256, "optimizer.name": "sgd"}
    | {"optimizer.lr": 0.03, "optimizer.weight_decay": 1e-4},
    "byol": {"method.projector": (4096, 256), "method.predictor": 4096, "method.momentum": 0.99}
    | {"optimizer.name": "lars", "optimizer.lr": 0.45},
    "simsiam": {"method.projector": (2048,) * 3, "method.predictor": 512}
    | {"optimizer.name": "sgd", "optimizer.lr": 0.05},
    "swav": {"method.projector": (2048, 128), "method.prototypes": 3000, "method.freeze_steps": 313}
    | {"method.epsilon": 0.05, "method.sinkhorn_iterations": 3, "method.temperature": 0.1},
    "corinfomax": {"method.projector": (8192, 8192, 512)}
    | {"method.invariance_weight": 2000, "method.forgetting": 0.1},
    "dissl": {
        "method.classes": 16384,
        "method.marginal_weight": 2.3,
        "method.invariance_weight": 0.8,
    }
    | {"method.teacher_temperature": 0.5, "method.student_temperature": 1},
    "npid": {"method.projector": (128,), "method.bank_momentum": 0.5, "method.temperature": 0.07},
    "la": {"method.projector": (128,), "method.temperature": 0.07},
    "pcl": {"method.clusters": (25_000, 50_000, 100_000), "method.temperature": 0.2},
    "lejepa": {"method.regularization_weight": 0.05, "method.num_slices": 1024}
    | {"method.integration_points": 17, "method.integration_limit": 5}
    | {"optimizer.name": "adamw", "optimizer.lr": 5e-4, "optimizer.weight_decay": 5e-4},
    "visreg": {"method.regularization_weight": 0.9, "method.num_slices": 4096}
    | {"method.projector": (2048, 2048, 256), "optimizer.name": "adamw", "optimizer.lr": 9e-4},
    "sem": {"method.variables": 4500, "method.units": 21, "method.temperature": 0.872}
    | {"method.target_temperature": 0.159, "method.projector": (4096, 256)}
    | {"optimizer.name": "lars", "optimizer.lr": 0.45, "training.batch_size": 4096},
}
"""ResNet-50 on ImageNet, as the authors of each method have it; learning rates are for 256 images."""

SHORT_CIFAR: dict[str, dict[str, Any]] = {
    "vicreg": {"optimizer.name": "lars", "optimizer.lr": 0.3, "optimizer.weight_decay": 1e-4}
    | {"method.projector": (2048,) * 3},
    "barlow_twins": {"optimizer.name": "lars", "optimizer.lr": 0.3, "optimizer.weight_decay": 1e-4}
    | {"method.projector": (2048,) * 3},
    "simclr": {"optimizer.name": "lars", "optimizer.lr": 0.4}
    | {"method.projector": (2048, 256), "method.temperature": 0.2},
    "byol": {"optimizer.name": "lars", "optimizer.lr": 1.0, "optimizer.weight_decay": 1e-5},
    "moco_v2": {"optimizer.name": "sgd", "optimizer.lr": 0.3, "method.queue_length": 32768},
    "simsiam": {"optimizer.name": "sgd", "optimizer.lr": 0.5, "optimizer.weight_decay": 1e-5},
    "swav": {"optimizer.name": "lars", "optimizer.lr": 0.6, "optimizer.weight_decay": 1e-6},
    "sem": {"optimizer.name": "lars", "optimizer.lr": 1.0, "optimizer.weight_decay": 1e-5}
    | {"method.variables": 5000, "method.units": 13},
}
"""ResNet-18 on CIFAR-10, batches of 256, ten epochs of warm-up: known to work."""


def assert_holds(config: Config, expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        group, name = key.split(".")
        assert getattr(getattr(config, group), name) == pytest.approx(value), key


@pytest.mark.parametrize("method_name", PUBLISHED)
def test_other_methods_have_their_authors_settings(method_name: str) -> None:
    assert_holds(recipe("imagenet", method_name), PUBLISHED[method_name])


@pytest.mark.parametrize("method_name", SHORT_CIFAR)
def test_short_runs_on_cifar_have_settings_that_are_known_to_work(method_name: str) -> None:
    common = {"training.batch_size": 256, "optimizer.warmup_epochs": 10}
    assert_holds(recipe("cifar10", method_name), SHORT_CIFAR[method_name] | common)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no recipe 'cifar-10'; did you mean 'cifar10'"):
        recipe("cifar-10")
    with pytest.raises(InputError, match=f"Recipes: {', '.join(RECIPES)}"):
        recipe("zzz")
