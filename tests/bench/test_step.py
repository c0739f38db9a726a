from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch.optim.optimizer import register_optimizer_step_pre_hook

from imsvd.bench import comparison
from imsvd.bench import step as bench
from imsvd.bench.comparison import Numbers
from imsvd.bench.step import (
    BENCHMARK,
    CONTENDERS,
    StepCase,
    lightly_network,
    random_images,
)
from imsvd.config import Config, override
from imsvd.errors import InputError
from imsvd.methods import build_method
from imsvd.networks import build_backbone
from imsvd.recipes import recipe
from tests.pretraining.tiny import CommandLine

TINY = [
    "training.batch_size=8",
    "method.projector=[16, 32]",
    "method.units=4",
    "views.views.0.size=8",
    "views.views.1.size=8",
]


def tiny() -> Config:
    config = recipe("cifar10-cpu")
    return override(config, [*config.method.published_form, *TINY])


@pytest.mark.parametrize("contender", CONTENDERS)
def test_every_loop_makes_views_and_moves_the_weights(contender: str) -> None:
    chosen = BENCHMARK.contenders[contender]
    for package in chosen.needs:
        pytest.importorskip(package)
    stepped: list[list[bool]] = []

    def watched(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        stepped.append([p.grad is not None and bool(p.grad.isfinite().all()) for p in parameters])

    hook = register_optimizer_step_pre_hook(watched)
    try:
        loop = chosen.make(tiny(), random_images(16, 12), 1)
        waited = [next(loop) for _ in range(2)]
    finally:
        hook.remove()
    assert all(seconds > 0 for seconds in waited)
    assert len(stepped) == (4 if contender == "code" else 2)  # the code head has its own optimizer
    assert all(all(step) for step in stepped)


def test_rival_and_ours_train_networks_of_the_same_size() -> None:
    pytest.importorskip("lightly")
    config = tiny()
    ours = build_method(config.method, build_backbone(config.backbone), 16)
    rival = lightly_network(config)
    assert sorted(tuple(p.shape) for p in ours.parameters()) == sorted(
        tuple(p.shape) for p in rival.parameters()
    )


def test_a_measurement_counts_whole_steps_and_its_parts_fit_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(bench.NETWORKS, "small", bench.Network("Tiny", tiny))
    monkeypatch.setattr(bench, "IMAGES", 16)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    found = BENCHMARK.measure(StepCase("ours", "small", 0.01))
    assert found["milliseconds"] == pytest.approx(1000 / found["images_per_second"])
    assert 0 < found["views"] < found["milliseconds"]
    assert found["loss"] > 0
    parts = found["views"] + found["loss"] + found["rest"]
    assert parts == pytest.approx(found["milliseconds"]) or found["rest"] == 0


def test_the_table_shows_rates_parts_and_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_up(_: object, case: StepCase) -> Numbers:
        slow = 3 if case.contender == "lightly" else 1
        parts = {"views": 1.0, "rest": 8.5, "loss": 0.5}
        rates = {"images_per_second": 300 / slow, "views_per_second": 600 / slow}
        return parts | rates | {"milliseconds": 1000 * slow / 300}

    monkeypatch.setattr(comparison, "measure_in_child", made_up)
    monkeypatch.setattr(bench.BENCHMARK, "reason_to_skip", lambda _: "")
    output = tmp_path / "deep" / "step"
    bench.run(["small"], 1, 1, Console(quiet=True), output, contenders=["ours", "lightly"])
    page = output.with_suffix(".md").read_text()
    assert "## Small ResNet" in page
    assert "- lightly: " in page
    assert "| lightly | 100 | 200 | 1.000 | 8.500 | 0.500 | 3.00 |" in page


def test_the_command_measures_every_loop(
    monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    measured = []

    def made_up(_: object, case: StepCase) -> Numbers:
        measured.append((case.network, case.contender))
        return {"milliseconds": 1.0}

    monkeypatch.setattr(comparison, "measure_in_child", made_up)
    monkeypatch.setattr(bench.BENCHMARK, "reason_to_skip", lambda _: "")
    assert command(["bench", "step", "--networks", "resnet18", "--repeats", "1"]) == 0
    assert measured == [("resnet18", name) for name in CONTENDERS]


def test_unknown_networks_and_empty_measurements_are_refused() -> None:
    with pytest.raises(InputError, match="'resnet81' is not measured; choose among small"):
        bench.run(["resnet81"])
    with pytest.raises(InputError, match="seconds = 0: choose more than 0"):
        bench.run(["small"], 0)
