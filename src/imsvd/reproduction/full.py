"""`imsvd reproduce … --scale full`: the exact experiments, what they cost, their jobs, a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imsvd.progress import progress_bar
from imsvd.reproduction.dry_run import dry_run as try_configurations
from imsvd.reproduction.estimate import (
    PAPER_GPUS,
    evaluation_gpu_hours,
    formula,
    hours_per_100_epochs,
    run_bytes,
    sizes,
    training_hours,
)
from imsvd.reproduction.experiment import Experiment
from imsvd.reproduction.full_plan import FullPlan, plan_full
from imsvd.reproduction.launchers import Machines, check_jobs, check_machines, write_jobs
from imsvd.reproduction.variants import Setup


def prepare(  # noqa: PLR0913 - one call that says all there is to say, by keyword
    experiments: Sequence[Experiment],
    setup: Setup,
    out: Path,
    *,
    nodes: int,
    gpus: int,
    launcher: str | None,
    jobs: Path,
    dry_run: bool,
    console: Console,
) -> bool:
    """Show what experiments take at full scale; write their jobs and try them, where asked.

    Args:
        experiments: whose runs, each of them once.
        setup: at full scale.
        out: folder for the runs.
        nodes: machines.
        gpus: of each machine.
        launcher: "slurm" or "torchrun", to write job files; or None.
        jobs: folder for the job files.
        dry_run: try every configuration here, in place of showing costs and commands.
        console: where to show all this.

    Returns:
        Whether no configuration has failed.
    """
    plan = plan_full(experiments, setup, out)
    machines = Machines(nodes, gpus)
    check_machines(machines)
    if launcher is not None:
        check_jobs(plan, launcher, machines)
    well = True
    if dry_run:
        trials = try_configurations(plan.runs, machines.processes, console)
        well = not any(trial.error for trial in trials)
    else:
        for experiment in experiments:
            _introduce(experiment, console)
        show_plan(plan, machines, console)
    if launcher is not None:
        write_jobs(plan, launcher, jobs, machines)
        console.print(
            f"Job files: {jobs}; its README.md says how to submit them.",
            highlight=False,
            soft_wrap=True,
        )
    return well


def show_plan(plan: FullPlan, machines: Machines, console: Console) -> None:
    """Print runs, hardware, hours, disk and commands of a plan."""
    with progress_bar(console) as bar:
        # Counted once and remembered; everything below asks for it again.
        for run in bar.track(plan.runs, description="counting parameters"):
            sizes(run.job.config)
    console.print(_costs(plan))
    for line in _totals(plan, machines):
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print("\nCommands:", style="bold")
    for command in plan.commands():
        console.print(command, highlight=False, markup=False, soft_wrap=True)


def _introduce(experiment: Experiment, console: Console) -> None:
    title = f"{experiment.name} ({experiment.source}): {experiment.shows}"
    for sentence in (title, *experiment.notes.get("full", ())):
        console.print(escape(sentence), highlight=False, soft_wrap=True)


def _costs(plan: FullPlan) -> Table:
    table = Table("run", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("M parameters", f"h on {PAPER_GPUS} V100", "GB"):
        table.add_column(title, justify="right")
    table.add_column("hours from")
    for run in plan.runs:
        config = run.job.config
        counted, per_100 = sizes(config), hours_per_100_epochs(config)
        parameters = (counted.backbone + counted.heads + counted.momentum) / 1e6
        table.add_row(
            escape(" ".join((run.method, *run.settings))),
            f"{parameters:.0f}",
            f"{'' if per_100.source else '~'}{training_hours(config):.1f}",
            f"{run_bytes(config) / 1e9:.1f}",
            per_100.source or "estimate",
        )
    return table


def _totals(plan: FullPlan, machines: Machines) -> list[str]:
    hours = sum(training_hours(run.job.config) for run in plan.runs)
    measured = sum(evaluation_gpu_hours(one.protocol) for one in plan.evaluations)
    disk = sum(run_bytes(run.job.config) for run in plan.runs) / 1e9
    encoders = sum(sizes(run.job.config).encoder for run in plan.runs) / 1e9
    by_detectron2 = any(one.protocol == "coco" for one in plan.evaluations)
    hardware = f"Hardware: {machines.nodes} × {machines.gpus} GPUs"
    if machines.processes != PAPER_GPUS:
        scaled = hours * PAPER_GPUS / machines.processes
        hardware += f"; {scaled:,.0f} h, if they are V100 and time goes inversely with their number"
    return [
        f"Runs: {len(plan.runs)} for {plan.entries} entries, each trained once.",
        f"{hardware}. The paper has {PAPER_GPUS} V100, and hours are of these.",
        f"Training: {hours:,.0f} h one after the other ({PAPER_GPUS * hours:,.0f} GPU hours).",
        f"Evaluations: {len(plan.evaluations)}, ~{measured:,.0f} GPU hours, on one machine each"
        f"{'; those of COCO by the time that Detectron2 lists' * by_detectron2}.",
        f"Disk: {disk:,.0f} GB at most, {encoders:,.1f} GB of it encoders; checkpoints can go when "
        "a run is over. Neither images nor evaluations are counted.",
        formula(),
    ]
