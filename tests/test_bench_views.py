import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from imsvd.bench import views as bench
from imsvd.bench.views_case import Measurement, read_items
from imsvd.bench.views_pipelines import CONTENDERS, Contender, Task
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
    views = CONTENDERS[contender].build(settings, task)(items)
    assert len(views) == 2
    for view, expected in zip(views, settings.views, strict=True):
        assert view.shape == (3, 3, expected.size, expected.size)
        assert view.dtype == torch.float32
        assert view.isfinite().all()
        assert -3 < view.min() < 0 < view.max() < 3
    assert not torch.equal(*views)


def test_a_fresh_process_measures_whole_passes(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", 32)
    (row,) = bench.run(None, images, 0.01, Console(), repeats=1, contenders=["ours"])
    assert row.times_ours == 1
    assert row.images_per_second is not None
    assert row.milliseconds == pytest.approx(1000 / row.images_per_second)


def test_table_and_results_show_medians_and_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"ours": iter((1.0, 2.0, 50.0)), "lightly": iter((8.0, 5.0, 6.0))}
    monkeypatch.setattr(bench, "_reason_to_skip", lambda case: "")
    monkeypatch.setattr(
        bench, "_measure", lambda case: Measurement(600, next(seconds[case.contender]))
    )
    console = Console(record=True, width=120)
    output = tmp_path / "deep" / "views"
    rows = bench.run(tmp_path, None, 1, console, output, contenders=["ours", "lightly"])
    assert [row.images_per_second for row in rows] == [300, 100]
    assert [row.times_ours for row in rows] == [1, 3]
    assert "lightly" in console.export_text()
    content = json.loads((tmp_path / "deep" / "views.json").read_text())
    assert content["environment"]["torch"] == torch.__version__
    assert len(content["rows"]) == 2
    assert "| lightly | 100 | 10.000 | 3.00 x |" in (tmp_path / "deep" / "views.md").read_text()


def test_what_is_not_installed_is_skipped_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Contender("missing", CONTENDERS["ours"].build, ("no_such_package",))
    monkeypatch.setitem(CONTENDERS, "missing", missing)
    console = Console(record=True, width=120)
    (row,) = bench.run(tmp_path, console=console, contenders=["missing"])
    assert row.images_per_second is None
    assert "no_such_package not installed" in console.export_text()


def test_without_folders_there_is_nothing_to_measure() -> None:
    with pytest.raises(InputError, match="folder"):
        bench.run(None, None)
