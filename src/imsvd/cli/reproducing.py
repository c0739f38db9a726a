"""`imsvd reproduce`: the paper's tables and figures, on this machine or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from imsvd.cli.app import (
    Parallel,
    Seeds,
    Sets,
    app,
    argument,
    console,
    option,
    print_path,
    whole_numbers,
)

if TYPE_CHECKING:
    from imsvd.reproduction.experiment import Budget, Setup

reproduce = typer.Typer(
    help="Reproduce the paper's tables and figures.\n\n"
    "`run` does so on this machine, at a small scale. `plan` prepares the original scale for a "
    "cluster, and `collect` makes tables and plots of what the cluster has finished.",
    no_args_is_help=True,
)
app.add_typer(reproduce, name="reproduce")

Names = Annotated[list[str], argument("NAME", "Experiments from `imsvd reproduce list`, or `all`.")]
Store = Annotated[Path, option("FOLDER", "Folder of runs and results; nothing in it is repeated.")]
ImageNet = Annotated[str, option("DATA", "ImageNet, as for `imsvd pretrain`.")]
STORE = Path("runs/reproduction")


def _transfer(name: str, default: str) -> Any:
    return option("DATA", f"{name}, for `transfer`. Default: {default}.")


Voc = Annotated[str | None, _transfer("Pascal VOC 2007", "voc2007")]
Coco = Annotated[str | None, _transfer("COCO 2017", "coco")]
Places = Annotated[str | None, _transfer("Places205", "places205")]


@reproduce.command("list")
def list_experiments() -> None:
    """List all experiments."""
    from imsvd.reproduction.experiments import EXPERIMENTS  # noqa: PLC0415

    table = Table("name", "paper", "what it shows", box=None, padding=(0, 2, 0, 0))
    for experiment in EXPERIMENTS.values():
        table.add_row(experiment.name, experiment.source, experiment.shows)
    console.print(table)


@reproduce.command()
def run(  # noqa: PLR0913 - its options are its interface
    names: Names,
    *,
    data: Annotated[
        str,
        option(
            "DATA", "Labeled images: a folder with train/ and test/ (or val/), or a dataset name."
        ),
    ],
    out: Store = STORE,
    seeds: Seeds = "2",
    epochs: Annotated[int, option("N", "Epochs for every 100 of the paper.")] = 4,
    parallel: Parallel = 1,
    voc: Annotated[str | None, _transfer("Pascal VOC 2007", "drawn scenes")] = None,
    coco: Annotated[str | None, _transfer("COCO 2017", "drawn scenes")] = None,
    places: Annotated[str | None, _transfer("Places205", "the classes of --data")] = None,
    settings: Sets = None,
) -> None:
    """Run experiments on a CPU and compare the order of the results with the paper's.

    Safe to interrupt; run the same command to resume.
    """
    from imsvd.reproduction import running  # noqa: PLC0415
    from imsvd.reproduction.experiments import find_experiments  # noqa: PLC0415

    experiments = find_experiments(names)
    setup = _setup("cpu", data, seeds, epochs, (voc, coco, places), settings)
    contents = running.reproduce(experiments, setup, out, parallel=parallel, console=console)
    print_path("Tables and plots", out / "experiments")
    if any(content["failures"] for content in contents):
        raise typer.Exit(1)


@reproduce.command()
def plan(  # noqa: PLR0913 - its options are its interface
    names: Names,
    *,
    data: ImageNet = "imagenet",
    out: Store = STORE,
    seeds: Seeds = "1",
    epochs: Annotated[int, option("N", "Epochs for every 100 of the paper.")] = 100,
    nodes: Annotated[int, option("N", "Machines per run.")] = 4,
    gpus: Annotated[int, option("N", "GPUs per machine.")] = 8,
    launcher: Annotated[
        str | None, option("NAME", "Write job files for slurm or torchrun.")
    ] = None,
    jobs: Annotated[Path, option("FOLDER", "Folder for the job files.")] = Path("jobs"),
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Instead of showing costs, build every network without memory and train its "
            "smallest form for a step.",
        ),
    ] = False,
    voc: Voc = None,
    coco: Coco = None,
    places: Places = None,
    settings: Sets = None,
) -> None:
    """Show hardware, hours, disk and commands of experiments at the paper's scale."""
    from imsvd.reproduction import launching  # noqa: PLC0415
    from imsvd.reproduction.experiments import find_experiments  # noqa: PLC0415

    experiments = find_experiments(names)
    setup = _setup("full", data, seeds, epochs, (voc, coco, places), settings)
    succeeded = launching.prepare(
        experiments,
        setup,
        out,
        launching.Machines(nodes, gpus),
        console,
        launcher=launcher,
        jobs=jobs,
        try_first=dry_run,
    )
    raise typer.Exit(0 if succeeded else 1)


@reproduce.command()
def collect(  # noqa: PLR0913 - its options are its interface
    names: Annotated[
        list[str] | None,
        argument("NAME", "Experiments. Default: all that have runs in --out.", show_default=False),
    ] = None,
    *,
    data: ImageNet = "imagenet",
    out: Store = STORE,
    seeds: Seeds = "1",
    epochs: Annotated[int, option("N", "Epochs for every 100 of the paper.")] = 100,
    voc: Voc = None,
    coco: Coco = None,
    places: Places = None,
    write_docs: Annotated[
        Path | None,
        option("FILE", "Also write a page of all results in --out, small scale included."),
    ] = None,
    settings: Sets = None,
) -> None:
    """Make tables and plots of finished runs at the paper's scale.

    Pass the options that the runs were planned with.
    """
    from imsvd.reproduction import report  # noqa: PLC0415
    from imsvd.reproduction.experiments import find_experiments  # noqa: PLC0415

    setup = _setup("full", data, seeds, epochs, (voc, coco, places), settings)
    experiments = find_experiments(names or ["all"])
    if not names:
        experiments = [one for one in experiments if report.has_runs(one, setup, out)]
    if experiments or write_docs is None:
        report.collect(experiments, setup, out, console)
        print_path("Tables and plots", out / "experiments-full")
    if write_docs is not None:
        found = ", ".join(report.write_page(out, write_docs)) or f"no results, as {out} has none"
        console.print(f"{write_docs}: {found}", highlight=False, soft_wrap=True)


def _setup(
    budget: Budget,
    data: str,
    seeds: str,
    epochs: int,
    transfer: tuple[str | None, str | None, str | None],
    settings: list[str] | None,
) -> Setup:
    from imsvd.reproduction.experiment import Setup, check_setup  # noqa: PLC0415

    numbers = whole_numbers(seeds)
    chosen = tuple(dict.fromkeys(numbers)) if "," in seeds else tuple(range(numbers[0]))
    setup = Setup(budget, data, chosen, epochs, *transfer, tuple(settings or ()))
    check_setup(setup)
    return setup
