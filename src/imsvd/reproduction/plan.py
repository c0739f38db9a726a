"""`imsvd reproduce plan`: the commands of full-budget experiments, and their hours and disk.

The paper reports hours per 100 epochs on 32 V100 GPUs for five methods (Table IV) and for IMSVD with
other projectors (Tables VI and VII). All other hours are estimates with two terms, one for passes
through the backbone and one for the parameters of the heads, fitted to IMSVD's rows. For a reported
method with another head, only the difference between the heads is estimated. Disk is counted on
networks built on the meta device, which takes no memory.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from imsvd.config import Config
from imsvd.encoder import Encoder, describe_encoder
from imsvd.grid.jobs import run_folder
from imsvd.methods import Method, build_method
from imsvd.networks import BackboneSettings, build_backbone
from imsvd.paper_numbers import paper_tables
from imsvd.progress import progress_bar
from imsvd.recipes import recipe
from imsvd.reproduction.experiment import RECIPES, Experiment, PlannedRun, Setup
from imsvd.reproduction.experiments import OUR_NAMES
from imsvd.reproduction.results import evaluation_data

PAPER_GPUS = 32
IMAGENET_IMAGES = 1_281_167
PLACES205_IMAGES = 2_448_873
BACKBONE_HOURS = 7.14
"""Hours per 100 epochs for two views forward and backward through the backbone."""
HEAD_HOURS = 18.46
"""Hours per 100 epochs and 10⁹ head parameters; both terms are fitted to IMSVD's reported hours."""
LARGEST_ERROR = 0.2
"""Largest relative error of the estimate on the methods of Table IV."""
COCO_GPU_HOURS = 90_000 * 0.584 * 8 / 3600
"""90,000 iterations on 8 V100, at the 0.584 s that Detectron2's model zoo lists for R50-C4."""
KEPT_CHECKPOINTS = 3
"""Two are kept, and a third exists while it is written."""
LOG_BYTES_PER_EPOCH = 3_000
"""metrics.jsonl and TensorBoard events together, measured on runs with IMSVD."""
OPTIMIZER_SLOTS = {"lars": 1, "sgd": 1, "adamw": 2}
"""Tensors that an optimizer stores per weight."""
PROTOCOL_OPTIONS: dict[str, tuple[str, ...]] = {
    "linear": ("--recipe", "imagenet"),
    "knn": ("--k", "20", "--k", "200"),
    "voc07": (),
    "places205": (),
    "coco": ("--scale", "full"),
}


FORMULA = (
    f"Hours marked ~ are estimates per 100 epochs: {BACKBONE_HOURS:.2f} h for two views through the "
    f"backbone (a third of that for forward-only views) plus {HEAD_HOURS:.1f} h per 1000 M head "
    "parameters, fitted to Tables VI and VII. The largest error on the five methods of Table IV is "
    f"{100 * LARGEST_ERROR:.0f} %. Batch size is assumed to have no effect."
)


class EvaluationCommand(NamedTuple):
    """A command that runs one protocol, or draws one figure, for one encoder.

    Attributes:
        encoder: a run folder, or a published backbone such as "torchvision:resnet50".
        published: whether it is a published backbone.
        protocol: of `imsvd evaluate`, or "explain".
        label: unique among the commands of the encoder.
        words: the command line.
    """

    encoder: str
    published: bool
    protocol: str
    label: str
    words: tuple[str, ...]

    @property
    def single_process(self) -> bool:
        """Whether it must not be started on several processes."""
        return self.protocol in ("voc07", "explain")


class FullPlan(NamedTuple):
    """The distinct runs and evaluations of some experiments at full budget."""

    out: Path
    runs: tuple[PlannedRun, ...]
    evaluations: tuple[EvaluationCommand, ...]
    values: int
    """Number of values and figures of the paper that they reproduce."""

    def folder(self, run: PlannedRun) -> Path:
        """Return the folder of a run."""
        return run_folder(self.out, run.job)

    def training_command(self, run: PlannedRun) -> tuple[str, ...]:
        """Return the command line that trains `run`."""
        return (
            *("imsvd", "pretrain", run.job.config.data.source),
            *("--recipe", RECIPES["full"], "--method", run.method),
            *("--out", str(self.folder(run))),
            *(part for setting in run.settings for part in ("--set", setting)),
        )

    def commands(self) -> list[str]:
        """Return all command lines for a shell: trainings first, then evaluations."""
        training = [shlex.join(self.training_command(run)) for run in self.runs]
        return training + [shlex.join(evaluation.words) for evaluation in self.evaluations]


def plan_full(experiments: Sequence[Experiment], setup: Setup, out: Path) -> FullPlan:
    """Return the runs and evaluations of `experiments`, without duplicates."""
    runs: dict[str, PlannedRun] = {}
    evaluations: dict[tuple[str, str], EvaluationCommand] = {}
    values = 0
    for experiment in experiments:
        for run in experiment.runs(setup):
            # Of two ways to configure the same run, keep the shorter.
            known = runs.get(run.job.key, run)
            runs[run.job.key] = min(known, run, key=lambda one: len(one.settings))
        for cell in experiment.cells(setup):
            values += 1
            encoders = [
                (str(run_folder(out, job)), job.config.data.source) for job in cell.jobs
            ] or [(cell.published, setup.data)]
            for encoder, images in encoders:
                protocol = cell.measure.protocol
                words = _evaluation_words(protocol, encoder, images, setup, experiment.part, out)
                label = "-".join(filter(None, [protocol, experiment.part]))
                if words:
                    command = ("imsvd", *words)
                    evaluations[encoder, label] = EvaluationCommand(
                        encoder, bool(cell.published), protocol, label, command
                    )
    return FullPlan(out, tuple(runs.values()), tuple(evaluations.values()), values)


def _evaluation_words(
    protocol: str, encoder: str, images: str, setup: Setup, part: str, out: Path
) -> tuple[str, ...]:
    """Return the command line after `imsvd`; empty if training itself measures the value."""
    data = evaluation_data(protocol, images, setup, out)
    if protocol == "explain":
        # The paper's joint matrix is of the training images.
        split = "train" if part == "joint" else "test"
        return ("explain", encoder, data, "--split", split, "--only", part)
    if protocol not in PROTOCOL_OPTIONS:
        return ()
    return ("evaluate", protocol, encoder, data, *PROTOCOL_OPTIONS[protocol])


class Sizes(NamedTuple):
    """Parameters of a method, and bytes of its files."""

    backbone: int
    heads: int
    momentum: int
    """Parameters of momentum copies, which are not trained."""
    checkpoint: int
    encoder: int


def build_on_meta(config: Config) -> Method:
    """Build the method for ImageNet at full size, without memory for its weights."""
    backbone = _backbone_on_meta(config.backbone.model_dump_json())
    with torch.device("meta"):
        return build_method(config.method, backbone, IMAGENET_IMAGES)


@cache
def _backbone_on_meta(settings: str) -> nn.Module:
    """The backbone, which all methods can share; building it takes most of the time."""
    with torch.device("meta"):
        return build_backbone(BackboneSettings.model_validate_json(settings))


def same_network(config: Config) -> str:
    """Return a cache key: `config` as JSON without seed, data, length and machine."""
    usual = Config()
    rest: dict[str, Any] = {"seed": usual.seed, "data": usual.data, "compute": usual.compute}
    rest["training"] = usual.training.model_copy(update={"batch_size": config.training.batch_size})
    return config.model_copy(update=rest).model_dump_json()


def sizes(config: Config) -> Sizes:
    """Count what `config` trains and writes."""
    return _sizes(same_network(config))


@cache
def _sizes(network: str) -> Sizes:
    config = Config.model_validate_json(network)
    method = build_on_meta(config)
    backbone = _count(method.backbone, trained=True)
    trained = _count(method, trained=True)
    with torch.device("meta"):
        encoder = Encoder(describe_encoder(config))
    return Sizes(
        backbone=backbone,
        heads=trained - backbone,
        momentum=_count(method, trained=False),
        checkpoint=_bytes(method.state_dict())
        + 4 * trained * OPTIMIZER_SLOTS[config.optimizer.name],
        encoder=_bytes(encoder.state_dict()),
    )


def _count(module: nn.Module, *, trained: bool) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad == trained)


def _bytes(state: dict[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in state.values())


def run_bytes(config: Config) -> int:
    """Return the peak disk usage of a run."""
    logs = LOG_BYTES_PER_EPOCH * config.training.epochs
    return KEPT_CHECKPOINTS * sizes(config).checkpoint + sizes(config).encoder + logs


class Hours(NamedTuple):
    """Hours per 100 epochs on the paper's GPUs."""

    value: float
    source: str
    """The table that reports them; empty for an estimate."""


def estimated_hours(config: Config) -> float:
    """Return hours per 100 epochs by the two terms."""
    passes = config.method.views_with_gradient
    forward_only = passes / 3 if sizes(config).momentum else 0.0
    heads = sizes(config).heads / 1e9
    return BACKBONE_HOURS * (passes + forward_only) + HEAD_HOURS * heads * passes


@cache
def _reported_hours() -> dict[tuple[str, tuple[int, ...]], Hours]:
    """The paper's hours, by method and projector."""
    tables = paper_tables()
    reported: dict[tuple[str, tuple[int, ...]], Hours] = {}
    for width, hours in tables["width"].rows["hours"].items():
        reported["imsvd", (8192, int(width))] = Hours(hours, tables["width"].source)
    for depth, hours in tables["projector-depth"].rows["hours"].items():
        projector = (*[8192] * (int(depth) - 1), 8160)
        reported["imsvd", projector] = Hours(hours, tables["projector-depth"].source)
    for name, columns in tables["cost"].rows.items():
        key = _hours_key(recipe("imagenet", OUR_NAMES[name]))
        reported[key] = Hours(columns["hours"], tables["cost"].source)
    return reported


def _hours_key(config: Config) -> tuple[str, tuple[int, ...]]:
    return config.method.name, config.method.head_widths


def hours_per_100_epochs(config: Config) -> Hours:
    """Return the paper's hours for this method and projector, or an estimate."""
    reported = _reported_hours()
    if _hours_key(config) in reported:
        return reported[_hours_key(config)]
    estimate = estimated_hours(config)
    usual = recipe("imagenet", config.method.name)
    if _hours_key(usual) in reported:
        estimate += reported[_hours_key(usual)].value - estimated_hours(usual)
    return Hours(estimate, "")


def training_hours(config: Config) -> float:
    """Return the hours of a whole run on the paper's GPUs."""
    return hours_per_100_epochs(config).value * config.training.epochs / 100


def evaluation_gpu_hours(protocol: str) -> float:
    """Return estimated GPU hours of a protocol with ResNet-50.

    An epoch of one view forward costs a sixth of the backbone's share of a training epoch, which
    has two views and a backward pass twice as long. VOC 2007 and figures take minutes.
    """
    epoch = BACKBONE_HOURS * PAPER_GPUS / 6 / 100
    return {
        "linear": 100 * epoch,
        "places205": 14 * PLACES205_IMAGES / IMAGENET_IMAGES * epoch,
        "knn": epoch,
        "coco": COCO_GPU_HOURS,
    }.get(protocol, 0.1)


def show_plan(plan: FullPlan, nodes: int, gpus: int, console: Console) -> None:
    """Print runs, hardware, hours, disk and commands of a plan."""
    table = Table("run", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("M parameters", f"h on {PAPER_GPUS} V100", "GB"):
        table.add_column(title, justify="right")
    table.add_column("source of hours")
    with progress_bar(console) as bar:
        for run in bar.track(plan.runs, description="counting parameters"):
            config = run.job.config
            counted, per_100 = sizes(config), hours_per_100_epochs(config)
            table.add_row(
                escape(" ".join((run.method, *run.settings))),
                f"{(counted.backbone + counted.heads + counted.momentum) / 1e6:.0f}",
                f"{'' if per_100.source else '~'}{training_hours(config):.1f}",
                f"{run_bytes(config) / 1e9:.1f}",
                per_100.source or "estimate",
            )
    console.print(table)
    for line in _totals(plan, nodes, gpus):
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print("\nCommands:", style="bold")
    for command in plan.commands():
        console.print(command, highlight=False, markup=False, soft_wrap=True)


def _totals(plan: FullPlan, nodes: int, gpus: int) -> list[str]:
    hours = sum(training_hours(run.job.config) for run in plan.runs)
    evaluation = sum(evaluation_gpu_hours(one.protocol) for one in plan.evaluations)
    disk = sum(run_bytes(run.job.config) for run in plan.runs) / 1e9
    encoders = sum(sizes(run.job.config).encoder for run in plan.runs) / 1e9
    has_coco = any(one.protocol == "coco" for one in plan.evaluations)
    hardware = f"Hardware: {nodes} × {gpus} GPUs"
    if nodes * gpus != PAPER_GPUS:
        scaled = hours * PAPER_GPUS / (nodes * gpus)
        hardware += f", {scaled:,.0f} h if they are V100 and scale linearly"
    return [
        f"Runs: {len(plan.runs)}, for {plan.values} values of the paper.",
        f"{hardware}. The paper used {PAPER_GPUS} V100; all hours refer to them.",
        f"Training: {hours:,.0f} h in sequence ({PAPER_GPUS * hours:,.0f} GPU hours).",
        f"Evaluations: {len(plan.evaluations)}, ~{evaluation:,.0f} GPU hours, each on one machine"
        f"{'; COCO by the times listed for Detectron2' * has_coco}.",
        f"Disk: at most {disk:,.0f} GB, of which {encoders:,.1f} GB are encoders; checkpoints can be deleted "
        "after a run. Images and evaluations are not included.",
        FORMULA,
    ]
