"""`imsvd reproduce … --scale full --dry-run`: every configuration tried before a cluster is asked.

Each is built in full size on the meta device, where shapes are real and memory is not. Then its
smallest form (the same method, terms of the loss, optimizer and views, with a tiny backbone, batch
and width) is trained for a step on the CPU. Configurations with one smallest form share that step.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from imsvd.config import Config, override
from imsvd.encoder import load, untrained_encoder
from imsvd.errors import InputError, Interrupted
from imsvd.grid.jobs import Job
from imsvd.methods import Method
from imsvd.methods.base import SMALLEST_BATCH
from imsvd.networks import feature_width
from imsvd.progress import progress_bar
from imsvd.reproduction.full_networks import IMAGENET_IMAGES, build_on_meta, same_network
from imsvd.reproduction.variants import Run
from imsvd.runs import RunFolder
from imsvd.training import train
from imsvd.training.batches import EpochOrder
from imsvd.training.optimizers import build_optimizer

SIZE = 32


class Trial(NamedTuple):
    """How one configuration fared."""

    run: Run
    parameters: int
    error: str = ""


def dry_run(runs: Sequence[Run], processes: int, console: Console) -> list[Trial]:
    """Try the configurations of `runs` for so many processes, and show a table of them."""
    stepped: dict[Job, str] = {}
    trials = []
    with progress_bar(console) as bar:
        task = bar.add_task("dry run", total=len(runs))
        for run in runs:
            trials.append(_try(run, processes, stepped))
            bar.advance(task)
    _show(trials, len(stepped), console)
    return trials


def check_full_size(config: Config, processes: int = 1) -> int:
    """Build `config` on the meta device, check that everything fits, and count its parameters."""
    EpochOrder(IMAGENET_IMAGES, config.training.batch_size, config.seed, world=processes)
    return _check_network(same_network(config), config.training.batch_size // processes)


@cache
def _check_network(network: str, batch: int) -> int:
    """Check what runs of any length and seed share, for the images that one process gets."""
    config = Config.model_validate_json(network)
    method = build_on_meta(config)
    _check_optimizer(method, config)
    with torch.device("meta"), torch.no_grad():
        for size in {view.size for view in config.views.every}:
            features = method.backbone(torch.empty(batch, 3, size, size))
            _require(features.shape == (batch, feature_width(method.backbone)), "backbone")
        _check_heads(method, batch)
    return sum(weight.numel() for weight in method.parameters())


def smallest_settings(config: Config) -> list[str]:
    """Return the overrides that leave of `config` only what tells it from others in kind."""
    settings = [
        f"data.source=shapes:{SMALLEST_BATCH}",
        "backbone.options={layers: [1, 1, 1, 1], channels: [8, 8, 8, 8]}",
        *(f"views.views.{number}.size={SIZE}" for number in range(len(config.views.views))),
        f"views.local_size={SIZE // 2}",
        f"training.batch_size={SMALLEST_BATCH}",
        "training.knn_every=0",
        # From the first step on at the full rate, so that the step moves the weights.
        "optimizer.warmup_epochs=0",
        "compute.accelerator=cpu",
        "compute.workers=0",
    ]
    # What comes after a warm-up of the method is to be seen as well.
    settings.append(f"training.epochs={2 if config.method.first_phase else 1}")
    smallest = config.method.smallest().model_dump(mode="json", exclude={"name"})
    return settings + [f"method.{name}={value}" for name, value in smallest.items()]


def smallest_form(config: Config) -> Config:
    """Return the configuration that a CPU trains for a step in a second."""
    return override(config, smallest_settings(config))


def take_step(config: Config) -> None:
    """Train `config` to its end, and raise unless the loss is finite and the weights have moved."""
    before = list(untrained_encoder(config).backbone.parameters())
    with tempfile.TemporaryDirectory(prefix="imsvd-dry-run-") as folder:
        run = RunFolder(Path(folder) / "run")
        train(config, run, Console(quiet=True))
        after = list(load(run.path).backbone.parameters())
        losses = [record["loss"] for record in run.metrics()]
    _require(len(losses) == config.training.epochs and all(map(math.isfinite, losses)), "the loss")
    moved = any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    _require(moved, "the weights")


def _try(run: Run, processes: int, stepped: dict[Job, str]) -> Trial:
    parameters = 0
    try:
        parameters = check_full_size(run.job.config, processes)
        smallest = Job(smallest_form(run.job.config))
    except Exception as error:
        return Trial(run, parameters, _sentence(error))
    if smallest not in stepped:
        stepped[smallest] = ""
        try:
            take_step(smallest.config)
        except Interrupted:
            raise
        except Exception as error:
            stepped[smallest] = _sentence(error)
    return Trial(run, parameters, stepped[smallest])


def _sentence(error: Exception) -> str:
    """Whatever is wrong with a configuration, the others are to be tried too."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def _check_optimizer(method: Method, config: Config) -> None:
    """Every trained parameter is in exactly one group."""
    groups = build_optimizer(method, config).param_groups
    listed = [id(weight) for group in groups for weight in group["params"]]
    trained = {id(weight) for weight in method.parameters() if weight.requires_grad}
    _require(len(listed) == len(trained) and set(listed) == trained, "the optimizer")


def _check_heads(method: Method, batch: int) -> None:
    """Every head takes what the backbone or an earlier head gives."""
    widths = {feature_width(method.backbone)}
    for name, head in method.named_children():
        layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
        if name == "backbone" or not layers or not layers[0].weight.requires_grad:
            continue
        _require(layers[0].in_features in widths, name)
        given = head(torch.empty(batch, layers[0].in_features))
        _require(given.shape == (batch, layers[-1].out_features), name)
        widths.add(layers[-1].out_features)


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(f"{what} of this configuration is not as it should be")


def _show(trials: Sequence[Trial], steps: int, console: Console) -> None:
    table = Table("", "run", "settings", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("parameters", justify="right")
    for trial in trials:
        mark = "[red]✗[/red]" if trial.error else "[green]✓[/green]"
        said = trial.error or " ".join(trial.run.settings)
        count = f"{trial.parameters / 1e6:.1f} M" if trial.parameters else "–"
        table.add_row(mark, trial.run.method, escape(said), count)
    console.print(table)
    failed = sum(bool(trial.error) for trial in trials)
    console.print(
        f"{len(trials) - failed} of {len(trials)} configurations were built in full size and took "
        f"a step in their smallest form ({steps} distinct ones).",
        highlight=False,
        soft_wrap=True,
        style="red" if failed else "",
    )
