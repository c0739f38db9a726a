"""Preparing a plan for a cluster: a dry run of every configuration, and job files.

settings.sh     interpreter, machines and array indices
train.tsv       one line per run: number, folder, step, processes, command
evaluate.tsv    one line per evaluation, numbered like its run
common.sh …     fixed scripts, see the folder job_files
README.md       how to submit

The dry run builds each configuration at full size on the meta device, where shapes are real and
memory is not. Then the smallest form of it (same method, loss terms, optimizer and views; tiny
backbone, batch and widths) trains for a step on the CPU, once for all that share it.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from imsvd.config import Config, override
from imsvd.encoder import load, untrained_encoder
from imsvd.engine.batches import EpochOrder
from imsvd.errors import InputError, Interrupted
from imsvd.files import write_atomically
from imsvd.grid.jobs import Job
from imsvd.methods import Method
from imsvd.methods.settings import SMALLEST_BATCH
from imsvd.networks import feature_width
from imsvd.pretraining import train
from imsvd.pretraining.optimizers import build_optimizer
from imsvd.progress import progress_bar
from imsvd.reproduction.experiment import Experiment, PlannedRun, Setup
from imsvd.reproduction.plan import (
    IMAGENET_IMAGES,
    FullPlan,
    build_on_meta,
    plan_full,
    same_network,
    show_plan,
)
from imsvd.runs import RunFolder

SCRIPTS = {
    "slurm": ("common.sh", "array.sbatch", "submit.sh"),
    "torchrun": ("common.sh", "run.sh"),
}
SUBMITTING = {
    "slurm": "Submit with `bash {folder}/submit.sh --partition=… --time=24:00:00 --cpus-per-task=8`. "
    "All options go to `sbatch`; prefix the command with `AT_ONCE=4` to train four runs at a time.",
    "torchrun": "Start with `bash {folder}/run.sh`. With several machines, run it on each of them, prefixed with "
    "`NODE_RANK=0 MASTER_ADDR=host0 MASTER_PORT=29500`, where NODE_RANK is the machine's number.",
}
SMALLEST_SIZE = 32
"""Pixels of the views in the smallest form."""


class Machines(NamedTuple):
    """The hardware of a run; every GPU gets one process."""

    nodes: int = 4
    gpus: int = 8

    @property
    def processes(self) -> int:
        """Processes of a run."""
        return self.nodes * self.gpus

    def check(self) -> None:
        """Reject a cluster without machines or GPUs."""
        if min(self) < 1:
            raise InputError(
                f"--nodes {self.nodes} --gpus {self.gpus} is too few; use at least one of each."
            )


def prepare(
    experiments: Sequence[Experiment],
    setup: Setup,
    out: Path,
    machines: Machines,
    console: Console,
    *,
    launcher: str | None = None,
    jobs: Path = Path("jobs"),
    try_first: bool = False,
) -> bool:
    """Show costs and commands of full-budget experiments; write job files for a `launcher`.

    With `try_first`, a dry run replaces costs and commands. Return whether no configuration failed.
    """
    plan = plan_full(experiments, setup, out)
    machines.check()
    if launcher is not None:
        check_jobs(plan, launcher, machines)
    succeeded = True
    if try_first:
        trials = dry_run(plan.runs, machines.processes, console)
        succeeded = not any(trial.error for trial in trials)
    else:
        for experiment in experiments:
            title = f"{experiment.name} ({experiment.source}): {experiment.shows}"
            for sentence in (title, *experiment.notes.get("full", ())):
                console.print(escape(sentence), highlight=False, soft_wrap=True)
        show_plan(plan, *machines, console)
    if launcher is not None:
        write_jobs(plan, launcher, jobs, machines)
        line = f"Job files: {jobs} (see README.md there)"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return succeeded


def check_jobs(plan: FullPlan, launcher: str, machines: Machines) -> None:
    """Reject a plan that could not be submitted."""
    if launcher not in SCRIPTS:
        raise InputError(f"there is no launcher {launcher!r}; choose {' or '.join(SCRIPTS)}.")
    machines.check()
    for run in plan.runs:
        _check_batch(run.job.config, machines.processes)


def _check_batch(config: Config, processes: int) -> None:
    """Reject a batch that does not divide by the number of processes."""
    EpochOrder(IMAGENET_IMAGES, config.training.batch_size, config.seed, world=processes)


def write_jobs(plan: FullPlan, launcher: str, folder: Path, machines: Machines) -> None:
    """Write the job files of `plan` to `folder`."""
    check_jobs(plan, launcher, machines)
    # Runs are numbered as they are trained; published backbones follow.
    numbers = {str(plan.folder(run)): number for number, run in enumerate(plan.runs, 1)}
    for one in plan.evaluations:
        numbers.setdefault(one.encoder, len(numbers) + 1)
    contents = {
        "settings.sh": _settings(plan, machines, numbers),
        "train.tsv": _table(
            (number, plan.folder(run), "train", "all", shlex.join(plan.training_command(run)))
            for number, run in enumerate(plan.runs, 1)
        ),
        "evaluate.tsv": _table(
            (
                numbers[one.encoder],
                _evaluation_folder(one.encoder, plan.out) if one.published else one.encoder,
                one.label,
                "one" if one.single_process else "machine",
                shlex.join(one.words),
            )
            for one in sorted(plan.evaluations, key=lambda one: numbers[one.encoder])
        ),
        "README.md": _readme(plan, launcher, folder, machines),
    }
    for name in SCRIPTS[launcher]:
        script = files("imsvd.reproduction") / "job_files" / name
        contents[name] = script.read_text(encoding="utf-8")
    for name, content in contents.items():
        write_atomically(folder / name, content.encode())


def _settings(plan: FullPlan, machines: Machines, numbers: dict[str, int]) -> str:
    values = {
        "python": sys.executable,
        "start": str(Path.cwd()),
        "nodes": machines.nodes,
        "gpus": machines.gpus,
        "last_run": len(plan.runs),
        "trained": _ranges(range(1, len(plan.runs) + 1)),
        "evaluated": _ranges({numbers[e.encoder] for e in plan.evaluations if not e.published}),
        "published": _ranges({numbers[e.encoder] for e in plan.evaluations if e.published}),
    }
    return (
        "# shellcheck shell=bash disable=SC2034,SC2016\n"
        "# Interpreter, working directory, machines and GPUs per machine: adapt these four to your\n"
        "# cluster. The rest are line numbers of the tables.\n"
        + "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())
    )


def _evaluation_folder(encoder: str, out: Path) -> Path:
    """Return where finished evaluations of a published backbone are marked."""
    return out / "published" / re.sub(r"[^\w.]+", "-", encoder)


def _table(lines: Iterable[Sequence[object]]) -> str:
    text = ""
    for line in lines:
        fields = [str(field) for field in line]
        for field in fields:
            if re.search(r"[\t\r\n]", field):
                raise InputError(
                    f"{field!r} contains a tab or line break, which job files cannot hold; "
                    "use paths without them."
                )
        text += "\t".join(fields) + "\n"
    return text


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers as SLURM does, such as 1-3,5."""
    parts = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def _readme(plan: FullPlan, launcher: str, folder: Path, machines: Machines) -> str:
    return f"""# {len(plan.runs)} runs, {len(plan.evaluations)} evaluations

{SUBMITTING[launcher].format(folder=shlex.quote(str(folder)))}

`train.tsv` and `evaluate.tsv` have one command per line; `settings.sh` has the machines (now
{machines.nodes} with {machines.gpus} GPUs each). Runs are written to `{plan.out / "runs"}`. An empty
file such as `train.done` in a run folder marks a finished step, which is not repeated. Submit again to
resume interrupted or failed steps. See docs/cluster.md of imsvd for details.
"""


class Trial(NamedTuple):
    """Result of trying one configuration."""

    run: PlannedRun
    parameters: int
    error: str = ""


def dry_run(runs: Sequence[PlannedRun], processes: int, console: Console) -> list[Trial]:
    """Try the configurations of `runs` for `processes` processes, and show them in a table."""
    stepped: dict[Job, str] = {}
    with progress_bar(console) as bar:
        trials = [_try(run, processes, stepped) for run in bar.track(runs, description="dry run")]
    table = Table("", "run", "settings", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("parameters", justify="right")
    for run, parameters, error in trials:
        table.add_row(
            "[red]✗[/red]" if error else "[green]✓[/green]",
            run.method,
            escape(error or " ".join(run.settings)),
            f"{parameters / 1e6:.1f} M" if parameters else "–",
        )
    console.print(table)
    failed = sum(bool(trial.error) for trial in trials)
    console.print(
        f"{len(trials) - failed} of {len(trials)} configurations were built at full size and trained for "
        f"a step in their smallest form ({len(stepped)} distinct forms).",
        highlight=False,
        soft_wrap=True,
        style="red" if failed else "",
    )
    return trials


def _try(run: PlannedRun, processes: int, stepped: dict[Job, str]) -> Trial:
    try:
        parameters = check_full_size(run.job.config, processes)
        smallest = Job(smallest_form(run.job.config))
    except Exception as error:
        return Trial(run, 0, _sentence(error))
    if smallest not in stepped:
        try:
            take_step(smallest.config)
            stepped[smallest] = ""
        except Interrupted:
            raise
        except Exception as error:
            stepped[smallest] = _sentence(error)
    return Trial(run, parameters, stepped[smallest])


def _sentence(error: Exception) -> str:
    """Return the reason of a failure, which does not stop the other trials."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def check_full_size(config: Config, processes: int = 1) -> int:
    """Build `config` on the meta device, check that all shapes fit, and count its parameters."""
    _check_batch(config, processes)
    return _check_network(same_network(config), config.training.batch_size // processes)


@cache
def _check_network(network: str, batch: int) -> int:
    """Check the network for `batch` images per process."""
    config = Config.model_validate_json(network)
    method = build_on_meta(config)
    groups = build_optimizer(method, config).param_groups
    listed = [id(weight) for group in groups for weight in group["params"]]
    trained = {id(weight) for weight in method.parameters() if weight.requires_grad}
    _require(len(listed) == len(trained) and set(listed) == trained, "the optimizer")
    with torch.device("meta"), torch.no_grad():
        for size in {view.size for view in config.views.every}:
            features = method.backbone(torch.empty(batch, 3, size, size))
            _require(features.shape == (batch, feature_width(method.backbone)), "the backbone")
        _check_heads(method, batch)
    return sum(weight.numel() for weight in method.parameters())


def _check_heads(method: Method, batch: int) -> None:
    """Check that every head accepts the output of the backbone or of an earlier head."""
    widths = {feature_width(method.backbone)}
    for name, head in method.named_children():
        layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
        if name == "backbone" or not layers or not layers[0].weight.requires_grad:
            continue
        _require(layers[0].in_features in widths, f"the {name}")
        output = head(torch.empty(batch, layers[0].in_features))
        _require(output.shape == (batch, layers[-1].out_features), f"the {name}")
        widths.add(layers[-1].out_features)


def smallest_settings(config: Config) -> list[str]:
    """Return the overrides that shrink `config` to its smallest form."""
    settings = [
        f"data.source=shapes:{SMALLEST_BATCH}",
        "backbone.options={layers: [1, 1, 1, 1], channels: [8, 8, 8, 8]}",
        *(f"views.views.{n}.size={SMALLEST_SIZE}" for n in range(len(config.views.views))),
        f"views.local_size={SMALLEST_SIZE // 2}",
        f"training.batch_size={SMALLEST_BATCH}",
        # A method with a warm-up also trains an epoch beyond it.
        f"training.epochs={2 if config.method.first_phase else 1}",
        "training.knn_every=0",
        # Use the full learning rate in the first step, so that it moves the weights.
        "optimizer.warmup_epochs=0",
        "compute.accelerator=cpu",
        "compute.workers=0",
    ]
    smallest = config.method.smallest().model_dump(mode="json", exclude={"name"})
    return settings + [f"method.{name}={value}" for name, value in smallest.items()]


def smallest_form(config: Config) -> Config:
    """Return the configuration of the same kind that trains for a step in a second."""
    return override(config, smallest_settings(config))


def take_step(config: Config) -> None:
    """Train `config`; raise unless the loss is finite and the weights have moved."""
    before = list(untrained_encoder(config).backbone.parameters())
    with tempfile.TemporaryDirectory(prefix="imsvd-dry-run-") as folder:
        run = RunFolder(Path(folder) / "run")
        train(config, run, Console(quiet=True))
        after = list(load(run.path).backbone.parameters())
        losses = [record["loss"] for record in run.metrics()]
    _require(len(losses) == config.training.epochs and all(map(math.isfinite, losses)), "the loss")
    moved = any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    _require(moved, "the weights")


def _require(condition: bool, part: str) -> None:
    if not condition:
        raise ValueError(f"the dry run found a mistake in {part} of this configuration")
