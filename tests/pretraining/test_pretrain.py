import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import imsvd
from imsvd.datasets import open_source
from imsvd.pretraining.pretrain import automatic_config, configure
from imsvd.recipes import recipe
from tests.pretraining import tiny

QUIET = Console(quiet=True)


def write_images(folder: Path, count: int, side: int = 32, classes: int = 0) -> Path:
    random = np.random.default_rng(0)
    for number in range(count):
        parent = folder / f"class{number % classes}" if classes else folder
        parent.mkdir(parents=True, exist_ok=True)
        values = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(values).save(parent / f"{number:04d}.png")
    return folder


def test_pretrain_returns_the_encoder_of_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    encoder = imsvd.pretrain(
        "shapes:64", out, recipe="shapes", settings=tiny.SETTINGS, console=QUIET
    )
    again = imsvd.load(out).state_dict()
    assert all((again[name] == value).all() for name, value in encoder.state_dict().items())
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_name_wins_over_a_folder_so_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "shapes", 4)
    monkeypatch.chdir(tmp_path)
    assert configure("shapes", recipe_name="shapes").data.source == "shapes"
    assert configure("shapes:64", recipe_name="shapes").data.source == "shapes:64"
    folder = str(tmp_path / "shapes")
    assert configure("./shapes", recipe_name="shapes").data.source == folder
    assert configure(Path("shapes"), recipe_name="shapes").data.source == folder


@pytest.mark.parametrize(
    ("side", "count", "name", "batch"),
    [(32, 40, "cifar10-cpu", 8), (120, 9, "folder-cpu", 2), (32, 2, "cifar10-cpu", 2)],
)
def test_images_choose_the_recipe_and_the_batch(
    side: int, count: int, name: str, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = automatic_config(open_source(write_images(tmp_path, count, side)))
    assert config.backbone == recipe(name).backbone
    assert config.training.batch_size == batch


def test_settings_win_over_the_recipe_and_the_automatic_choice(tmp_path: Path) -> None:
    write_images(tmp_path, 40)
    assert configure(tmp_path, settings=["training.batch_size=10"]).training.batch_size == 10


def test_training_loads_no_detection_and_no_support_vectors() -> None:
    loaded = "print(*(name for name in sys.modules if name.startswith('imsvd.')))"
    modules = subprocess.run(
        [sys.executable, "-c", f"import sys, imsvd.pretraining.pretrain; {loaded}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "imsvd.pretraining.run" in modules
    assert not [
        name
        for name in modules
        if name.startswith(
            ("imsvd.evaluation.coco", "imsvd.evaluation.protocols", "imsvd.evaluation.voc07")
        )
    ]


def test_a_public_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        imsvd.pretrian  # noqa: B018
