from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from imsvd.bench import views as bench
from imsvd.bench.views import CONTENDERS, Task, read_items
from imsvd.errors import InputError
from imsvd.views import ViewsSettings, cifar_views, paper_views


def folder_of(path: Path, side: int) -> Path:
    path.mkdir()
    values = np.random.default_rng(0).integers(0, 256, (3, side, side, 3), dtype=np.uint8)
    for number, image in enumerate(values):
        Image.fromarray(image).save(path / f"{number}.jpg")
    return path


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("task", ["photographs", "small"])
def test_every_pipeline_makes_normalized_views(task: Task, contender: str, tmp_path: Path) -> None:
    for package in CONTENDERS[contender].needs:
        pytest.importorskip(package)
    settings: ViewsSettings = paper_views(48) if task == "photographs" else cifar_views(32)
    items = read_items(task, folder_of(tmp_path / "images", 60 if task == "photographs" else 32))
    views = CONTENDERS[contender].make(settings, task)(items)
    assert len(views) == 2
    for view, expected in zip(views, settings.views, strict=True):
        assert view.shape == (3, 3, expected.size, expected.size)
        assert view.dtype == torch.float32
        assert view.isfinite().all()
        assert -3 < view.min() < 0 < view.max() < 3
    assert not torch.equal(*views)


def test_a_fresh_process_measures_whole_passes(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", 32)
    console = Console(record=True, width=120)
    (row,) = bench.run(None, images, 0.01, console, repeats=1, contenders=["ours"])
    assert row["times_ours"] == 1
    assert row["milliseconds"] == pytest.approx(1000 / row["images_per_second"])
    assert "32-pixel images in memory" in console.export_text()


def test_without_folders_there_is_nothing_to_measure() -> None:
    with pytest.raises(InputError, match="folder"):
        bench.run(None, None)
