import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import imsvd
from imsvd.api import automatic_config, configure
from imsvd.datasets import open_source
from imsvd.errors import InputError
from imsvd.recipes import recipe
from tests.training import tiny

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


def test_evaluations_are_returned_and_recorded(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    data = tmp_path / "data"
    write_images(data / "train", 30, classes=3)
    write_images(data / "test", 12, classes=3)
    knn = imsvd.evaluate_knn(run, data, neighbours=(5,))
    probe = imsvd.evaluate_linear_probe(run, data)
    assert set(knn) == {"knn_5"}
    assert all(0 <= value <= 100 for value in (*knn.values(), *probe.values()))
    results = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [result["protocol"] for result in results] == ["knn", "linear-probe"]
    assert results[0]["metrics"] == knn
    assert results[0]["details"]["train_images"] == 30


def test_evaluation_needs_labels(trained: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "train", 4)
    write_images(tmp_path / "test", 4)
    with pytest.raises(InputError, match="has no labels in its train split"):
        imsvd.evaluate_knn(trained, tmp_path)


def test_a_public_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        imsvd.pretrian  # noqa: B018
