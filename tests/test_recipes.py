"""What every recipe must be: buildable, re-runnable, and honest about what it costs."""

import inspect

import pytest
import torch

from imsvd.errors import InputError
from imsvd.methods import METHODS, IMSVDSettings, build_method
from imsvd.networks import build_backbone, feature_width
from imsvd.recipes import RECIPES, recipe


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


@pytest.mark.parametrize("name", ["shapes", "cifar10-cpu", "folder-cpu"])
def test_a_recipe_for_a_cpu_takes_a_step_on_one(name: str) -> None:
    config = recipe(name)
    method = build_method(config.method, build_backbone(config.backbone), 10_000)
    views = [torch.randn(4, 3, view.size, view.size) for view in config.views.every]
    output = method(views, torch.arange(4))
    output.loss.backward()
    assert torch.isfinite(output.loss)


@pytest.mark.parametrize("name", RECIPES)
def test_two_calls_give_the_same(name: str) -> None:
    assert recipe(name) == recipe(name)


def test_the_published_settings_are_those_of_the_paper() -> None:
    config = recipe("imagenet")
    assert config.backbone.name == "resnet50"
    assert config.method == IMSVDSettings(projector=(8192, 8160), units=80)
    assert config.peak_lr == pytest.approx(4.8)
    assert (config.training.epochs, config.training.batch_size) == (100, 2048)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no recipe 'cifar-10'; did you mean 'cifar10'"):
        recipe("cifar-10")
    with pytest.raises(InputError, match=f"Recipes: {', '.join(RECIPES)}"):
        recipe("zzz")
