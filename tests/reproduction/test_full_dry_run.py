"""The dry run: full size on the meta device, and a real step of the smallest form."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from imsvd.config import Config, override
from imsvd.grid.jobs import Job
from imsvd.methods import METHODS
from imsvd.recipes import recipe
from imsvd.reproduction import dry_run as module
from imsvd.reproduction.dry_run import (
    Trial,
    check_full_size,
    dry_run,
    smallest_form,
    smallest_settings,
    take_step,
)
from imsvd.reproduction.experiments import EXPERIMENTS, Setup, find_experiments
from imsvd.reproduction.full_networks import build_on_meta
from imsvd.reproduction.full_plan import plan_full
from imsvd.reproduction.variants import Run


def runs(*names: str) -> tuple[Run, ...]:
    return plan_full(find_experiments(names), Setup("full"), Path("out")).runs


def distinct(some: tuple[Run, ...]) -> list[Config]:
    return [job.config for job in dict.fromkeys(Job(smallest_form(run.job.config)) for run in some)]


def same_kind(config: Config) -> dict[str, object]:
    """What the smallest form must share with the configuration it stands for."""
    method = config.method.model_dump()
    weights = {name: value for name, value in method.items() if isinstance(value, float | str)}
    views = [view.model_dump(exclude={"size"}) for view in config.views.every]
    optimizer = config.optimizer.model_dump(exclude={"warmup_epochs"})
    return {"method": weights, "views": views, "optimizer": optimizer, "name": config.backbone.name}


@pytest.mark.parametrize("name", METHODS)
def test_the_smallest_form_is_small_and_of_the_same_kind(name: str) -> None:
    config = recipe("imagenet", name)
    smallest = smallest_form(config)
    assert same_kind(smallest) == same_kind(config)
    assert smallest_form(smallest) == smallest
    assert smallest.training.batch_size == 16
    weights = list(build_on_meta(smallest).parameters())
    assert sum([weight.numel() for weight in weights]) < 100_000
    settings = smallest_settings(config)
    assert len({setting.partition("=")[0] for setting in settings}) == len(settings)


def test_what_experiments_change_is_kept() -> None:
    units = {config.method.units for config in distinct(runs("units"))}  # type: ignore[attr-defined]
    assert units == {32, 64, 80, 96, 128}
    depths = {len(config.method.projector) for config in distinct(runs("projector-depth"))}  # type: ignore[attr-defined]
    assert depths == {2, 3, 4}
    assert len(distinct(runs("loss-terms"))) == 4
    assert len(distinct(runs("batch-size"))) == 3  # one for each method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_built_in_full_size(name: str) -> None:
    # Some batch per process that all of them divide into.
    assert (
        check_full_size(override(recipe("imagenet", name), ["training.batch_size=4096"]), 32) > 2e7
    )


def test_the_parameters_of_the_papers_network_are_counted() -> None:
    assert check_full_size(recipe("imagenet")) == 107_156_544


@pytest.mark.parametrize("name", ["imsvd", "swav", "la"])
def test_a_step_is_taken(name: str) -> None:
    take_step(smallest_form(recipe("imagenet", name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_step(name: str) -> None:
    take_step(smallest_form(recipe("imagenet", name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_passes(name: str) -> None:
    trials = dry_run(runs(name), 32, Console(quiet=True))
    assert [trial.error for trial in trials] == [""] * len(trials)


def test_a_step_that_moves_nothing_is_an_error() -> None:
    config = override(smallest_form(recipe("imagenet")), ["optimizer.lr=1e-300"])
    with pytest.raises(ValueError, match="the weights"):
        take_step(config)


def test_parameters_that_no_group_trains_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(method: torch.nn.Module, config: Config) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(method.parameters())[1:], lr=config.optimizer.lr)

    monkeypatch.setattr(module, "build_optimizer", forgetful)
    module._check_network.cache_clear()
    with pytest.raises(ValueError, match="the optimizer"):
        check_full_size(recipe("imagenet"))


def test_failures_are_told_and_the_others_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def step(config: Config) -> None:
        tried.append(config)
        if config.method.name == "vicreg":
            raise RuntimeError("no\nstep")

    monkeypatch.setattr(module, "take_step", step)
    console = Console(record=True, width=200, file=io.StringIO())
    some = runs("batch-size")
    trials = dry_run(some, 24, console)
    by_method = {
        method: {trial.error for trial in trials if trial.run.method == method}
        for method in ("imsvd", "vicreg", "simsiam")
    }
    refusal = "training.batch_size=512 does not divide by 24 processes"
    assert all(any(refusal in error for error in errors) for errors in by_method.values())
    divisible = [run for run in some if run.job.config.training.batch_size % 24 == 0]
    assert not divisible  # 24 divides none of the paper's batches
    assert not tried

    trials = dry_run(some, 32, console)
    assert [bool(trial.error) for trial in trials] == [run.method == "vicreg" for run in some]
    assert len(tried) == 3
    failed = next(trial for trial in trials if trial.error)
    assert failed == Trial(failed.run, 174_552_128, "RuntimeError: no")
    shown = console.export_text()
    assert shown.count("✗") == len(some) + 4
    assert "8 of 12 configurations" in shown
