from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from imsvd.figures import draw_comparison, draw_demo, draw_training
from imsvd.runs import RunFolder

RECORDS: list[dict[str, Any]] = [
    {"epoch": epoch, "loss": -epoch, "terms": {"first_term": epoch / 2}} for epoch in (1, 2, 3)
]


def assert_picture(path: Path, least_width: int) -> None:
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width >= least_width
        colors = np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)
    assert len(colors) > 50, "an empty page has few colors"


def test_training_is_drawn_with_its_bounds(trained: Path, tmp_path: Path) -> None:
    records = RunFolder(trained).metrics()
    assert_picture(draw_training(records, tmp_path / "a.png"), 1500)
    without = [{**record, "bounds": {}} for record in records]
    draw_training(without, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_a_method_without_bounds_is_drawn_too(tmp_path: Path) -> None:
    assert_picture(draw_training(RECORDS, tmp_path / "a.png"), 800)


def test_the_page_of_the_demo(trained: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    series = ("chance", "untrained", "trained")
    accuracies = {name: {"shape": 20.0, "color": 60.0} for name in series}
    images = [random.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(4)]
    galleries = {"variable 1, unit 2": images, "variable 3, unit 1": images[:2]}
    records = RunFolder(trained).metrics()
    assert_picture(draw_demo(records, accuracies, galleries, tmp_path / "demo.png"), 1500)


def test_methods_are_drawn_with_a_band_for_their_seeds(tmp_path: Path) -> None:
    runs = [[(epoch, 100.0 * epoch, 20.0 + epoch + seed) for epoch in (1, 2, 3)] for seed in (0, 1)]
    assert_picture(draw_comparison({"imsvd": runs}, tmp_path / "a.png"), 1500)
    mean = [[(epoch, 100.0 * epoch, 20.5 + epoch) for epoch in (1, 2, 3)]]
    draw_comparison({"imsvd": mean}, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()
    many = {f"method {number}": runs for number in range(20)}
    assert_picture(draw_comparison(many, tmp_path / "c.png"), 1500)


def test_a_method_that_changes_its_loss_on_the_way_is_drawn(tmp_path: Path) -> None:
    bounds = {"ideal": {"contrast": 0.0, "total": 0.0}}
    records = [
        {"epoch": 1, "loss": 2.0, "terms": {"instance": 2.0}, "health": {}, "bounds": bounds},
        {"epoch": 2, "loss": 1.0, "terms": {"aggregation": 1.0}, "health": {}, "bounds": bounds},
    ]
    assert_picture(draw_training(records, tmp_path / "a.png"), 800)
