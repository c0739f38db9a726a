import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch.optim.optimizer import register_optimizer_step_pre_hook

from imsvd.bench import step as bench
from imsvd.bench import step_case
from imsvd.bench.step_case import Case, Measurement
from imsvd.bench.step_loops import CONTENDERS, random_images
from imsvd.config import Config, override
from imsvd.errors import InputError
from imsvd.methods import build_method
from imsvd.networks import build_backbone
from imsvd.recipes import recipe

TINY = [
    "training.batch_size=8",
    "method.projector=[16, 32]",
    "method.units=4",
    "views.views.0.size=8",
    "views.views.1.size=8",
]


def tiny() -> Config:
    return override(recipe("cifar10-cpu"), TINY)


@pytest.mark.parametrize("contender", CONTENDERS)
def test_every_loop_makes_views_and_moves_the_weights(
    contender: str,
) -> None:
    for package in CONTENDERS[contender].needs:
        pytest.importorskip(package)
    stepped: list[list[bool]] = []

    def watched(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        stepped.append([p.grad is not None and bool(p.grad.isfinite().all()) for p in parameters])

    hook = register_optimizer_step_pre_hook(watched)
    try:
        loop = CONTENDERS[contender].build(tiny(), random_images(16, 12), 1)
        waited = [next(loop) for _ in range(2)]
    finally:
        hook.remove()
    assert all(seconds > 0 for seconds in waited)
    assert len(stepped) == 2
    assert all(all(step) for step in stepped)


def test_rival_and_ours_train_networks_of_the_same_size() -> None:
    pytest.importorskip("lightly")
    from imsvd.bench.step_loops import _lightly_network  # noqa: PLC0415

    config = tiny()
    ours = build_method(config.method, build_backbone(config.backbone), 16)
    rival = _lightly_network(config)
    assert sorted(tuple(p.shape) for p in ours.parameters()) == sorted(
        tuple(p.shape) for p in rival.parameters()
    )


def test_a_measurement_counts_whole_steps_and_its_parts_fit_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(step_case.NETWORKS, "small", tiny)
    monkeypatch.setattr(step_case, "IMAGES", 16)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    found = step_case.measure(Case("ours", "small", 1, 0.01))
    assert found.images >= 16
    assert found.images % 8 == 0
    assert 0 < found.views < found.seconds
    assert found.loss > 0


def test_table_and_results_show_medians_ratios_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: dict[str, Iterator[float]] = {
        "ours": iter((1.0, 2.0, 50.0)),
        "lightly": iter((8.0, 5.0, 6.0)),
    }
    monkeypatch.setattr(bench, "_reason_to_skip", lambda case: "")
    monkeypatch.setattr(
        bench, "_measure", lambda case: Measurement(600, next(seconds[case.contender]), 0.6, 0.3)
    )
    console = Console(record=True, width=160)
    output = tmp_path / "deep" / "step"
    rows = bench.run(["small"], 1, 3, console, output, contenders=["ours", "lightly"])
    assert [row.images_per_second for row in rows] == [300, 100]
    assert [row.times_ours for row in rows] == [1, 3]
    assert [row.rest for row in rows] == [pytest.approx(1000 / rate - 1.5) for rate in (300, 100)]
    assert "Small ResNet" in console.export_text()
    content = json.loads((tmp_path / "deep" / "step.json").read_text())
    assert content["environment"]["torch"] == torch.__version__
    text = (tmp_path / "deep" / "step.md").read_text()
    assert "| lightly | 100 | 200 | 1.000 | 8.500 | 0.500 | 3.00 x |" in text


def test_what_is_not_installed_is_skipped_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = CONTENDERS["ours"]._replace(label="missing", needs=("no_such_package",))
    monkeypatch.setitem(CONTENDERS, "missing", missing)
    console = Console(record=True, width=160)
    (row,) = bench.run(["small"], 1, 1, console, contenders=["missing"])
    assert row.images_per_second is None
    assert "no_such_package not installed" in console.export_text()


def test_unknown_networks_and_empty_measurements_are_refused() -> None:
    with pytest.raises(InputError, match="'resnet81' is not measured; choose among small"):
        bench.run(["resnet81"])
    with pytest.raises(InputError, match="repeats must be at least 1"):
        bench.run(["small"], repeats=0)
