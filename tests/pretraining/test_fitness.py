from pathlib import Path

import pytest
import torch
from PIL import Image

from imsvd.config import Config, override
from imsvd.datasets import Subset, open_source
from imsvd.methods import IMSVD, METHODS
from imsvd.pretraining import fitness
from imsvd.pretraining.pretrain import automatic_config
from imsvd.recipes import recipe
from tests.pretraining import tiny
from tests.pretraining.tiny import CommandLine

GIB = 2**30


def needs(config: Config, images: int = 10_000) -> float:
    fixed, per_image = fitness.memory_needs(config, images)
    return (fixed + per_image * config.training.batch_size) / GIB


def test_the_papers_recipe_needs_far_more_than_one_gpu_has() -> None:
    assert 120 < needs(recipe("imagenet")) < 220


def test_float32_keeps_twice_as_much() -> None:
    mixed = fitness.memory_needs(recipe("imagenet"), 100)[1]
    whole = override(recipe("imagenet"), ["compute.precision=32-true"])
    assert fitness.memory_needs(whole, 100)[1] == pytest.approx(2 * mixed)


def test_what_is_counted_is_what_autograd_saves() -> None:
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1, bias=False), torch.nn.ReLU())
    # The convolution keeps its input, the ReLU its output.
    assert fitness._saved_bytes(backbone.to("meta"), 16) == (3 + 8) * 16 * 16 * 4


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_estimated(name: str) -> None:
    fixed, per_image = fitness.memory_needs(recipe("cifar10", name), 50_000)
    assert fixed > 2**20
    assert per_image > 2**20


@pytest.mark.parametrize(("gib", "processes"), [(8, 1), (24, 1), (80, 1), (24, 8)])
def test_the_fitted_batch_fits_and_the_double_would_not(gib: int, processes: int) -> None:
    config = recipe("imagenet")
    batch = fitness.fitting_batch(config, 10_000, gib * GIB, processes)
    fixed, per_image = fitness.memory_needs(config, 10_000)
    assert fixed + per_image * batch / processes <= 0.85 * gib * GIB
    assert batch == 2048 or fixed + per_image * 2 * batch / processes > 0.85 * gib * GIB


def test_photographs_on_one_gpu_get_a_batch_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (240, 180)).save(tmp_path / "photograph.png")
    source = Subset(open_source(tmp_path), [0] * 100_000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(fitness, "smallest_memory", lambda: 24 * GIB)
    config = automatic_config(source)
    assert config.backbone.name == "resnet50"
    assert 64 <= config.training.batch_size < 512


def test_out_of_memory_is_one_sentence_with_the_batch_that_fits(
    tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of fitness.")

    monkeypatch.setattr(IMSVD, "forward", fail)
    command.refuses(
        tiny.arguments("shapes:128", tmp_path / "run"),
        "training.batch_size=32 does not fit",
        "--set training.batch_size=16",
    )
