"""The command that repeats the paper: its tables and figures, at its scale or at that of a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from imsvd.cli.app import Sets, app, console, whole_numbers
from imsvd.errors import InputError

if TYPE_CHECKING:
    from imsvd.reproduction.experiments import Experiment, Scale, Setup

SEEDS: dict[Scale, str] = {"full": "1", "cpu": "2"}
"""How many seeds there are at each scale, unless others are asked for."""


@app.command()
def reproduce(  # noqa: PLR0913 - its options are its interface
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME…",
            help="Tables and figures, or `all`; without any, they are listed.",
            show_default=False,
        ),
    ] = None,
    *,
    scale: Annotated[
        str,
        typer.Option(
            help="cpu: run it here, small, and compare the order of the results with the paper's; "
            "full: the paper's own experiment, for a cluster: hardware, hours, disk and commands."
        ),
    ] = "cpu",
    data: Annotated[
        str | None,
        typer.Option(
            help="Images to train on: labeled, with train/ and test/ (or val/), or a name."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Store of runs and results; what it already holds is not repeated."),
    ] = Path("runs/reproduction"),
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="How many seeds, or which, such as 0,1,2. Default: 2; full: 1."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Epochs that stand for the paper's 100. Default: 4; full: 100."),
    ] = None,
    parallel: Annotated[
        int, typer.Option(help="Runs at a time; each gets its share of the cores.")
    ] = 1,
    voc: Annotated[
        str | None,
        typer.Option(help="For transfer: Pascal VOC 2007. cpu: drawn scenes, if not given."),
    ] = None,
    coco: Annotated[
        str | None, typer.Option(help="For transfer: COCO 2017. cpu: drawn scenes, if not given.")
    ] = None,
    places: Annotated[
        str | None,
        typer.Option(help="For transfer: Places205. cpu: the classes of --data, if not given."),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(help="full: write job files for slurm or torchrun, to the folder --jobs."),
    ] = None,
    jobs: Annotated[Path, typer.Option(help="full: folder for the job files.")] = Path("jobs"),
    nodes: Annotated[int, typer.Option(help="full: machines.")] = 4,
    gpus: Annotated[int, typer.Option(help="full: GPUs, and so processes, per machine.")] = 8,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="full: build every network without memory for it, and try a step of its "
            "smallest form here.",
        ),
    ] = False,
    collect: Annotated[
        bool,
        typer.Option(
            "--collect",
            help="full: make tables and plots of what the runs in --out have brought so far.",
        ),
    ] = False,
    write_docs: Annotated[
        Path | None,
        typer.Option(help="Write a page about all results in --out to this file, and run nothing."),
    ] = None,
    settings: Sets = None,
) -> None:
    """Repeat the paper's tables and figures; kill it at any moment and run it again to go on.

    `imsvd reproduce` lists them. `imsvd reproduce units --data DIR` runs one on a CPU and says
    whether the paper's order is kept. `imsvd reproduce units --scale full` is the exact experiment.
    """
    if write_docs is not None:
        _write_docs(out, write_docs)
        return
    if not names:
        _list()
        return
    from imsvd.reproduction.experiments import Setup, find_experiments  # noqa: PLC0415
    from imsvd.reproduction.reproduce import check_setup  # noqa: PLC0415

    experiments, chosen = find_experiments(names), _scale(scale)
    setup = Setup(
        chosen,
        data or "imagenet",
        _seeds(seeds or SEEDS[chosen]),
        epochs,
        voc,
        coco,
        places,
        tuple(settings or ()),
    )
    check_setup(setup)
    if collect and scale == "full":
        _collect(experiments, setup, out)
        return
    if scale == "full":
        from imsvd.reproduction.full import prepare  # noqa: PLC0415

        well = prepare(
            experiments,
            setup,
            out,
            nodes=nodes,
            gpus=gpus,
            launcher=launcher,
            jobs=jobs,
            dry_run=dry_run,
            console=console,
        )
        raise typer.Exit(0 if well else 1)
    if launcher or dry_run or collect:
        raise InputError(
            "--launcher, --dry-run and --collect are for the paper's own scale; add --scale full."
        )
    if data is None:
        raise InputError("--data is missing: labeled images with train/ and test/, or cifar10.")
    _run(experiments, setup, out, parallel)


def _scale(text: str) -> Scale:
    for scale in SEEDS:
        if scale == text:
            return scale
    raise InputError(f"--scale {text!r} is not possible; choose {' or '.join(SEEDS)}.")


def _seeds(text: str) -> tuple[int, ...]:
    """A number of seeds, or the seeds themselves."""
    numbers = whole_numbers(text)
    return tuple(range(numbers[0])) if "," not in text else tuple(dict.fromkeys(numbers))


def _list() -> None:
    """Say what can be reproduced."""
    from imsvd.reproduction.experiments import EXPERIMENTS  # noqa: PLC0415

    table = Table("name", "paper", "what it shows", box=None, padding=(0, 2, 0, 0))
    for experiment in EXPERIMENTS.values():
        table.add_row(experiment.name, experiment.source, experiment.shows)
    console.print(table)
    console.print(
        "\nimsvd reproduce NAME --data DIR    run it here, small\n"
        "imsvd reproduce NAME --scale full  what the paper's own scale takes",
        highlight=False,
    )


def _run(experiments: Sequence[Experiment], setup: Setup, out: Path, parallel: int) -> None:
    from imsvd.reproduction import reproduce as running  # noqa: PLC0415

    contents = running.reproduce(experiments, setup, out, parallel=parallel, console=console)
    console.print(f"Tables and plots: {out / 'experiments'}", highlight=False, soft_wrap=True)
    if any(content["failures"] for content in contents):
        raise typer.Exit(1)


def _collect(experiments: Sequence[Experiment], setup: Setup, out: Path) -> None:
    from imsvd.reproduction.collecting import collect  # noqa: PLC0415
    from imsvd.reproduction.report import FOLDERS  # noqa: PLC0415

    collect(experiments, setup, out, console)
    folder = out / FOLDERS["full"]
    console.print(f"Tables and plots: {folder}", highlight=False, soft_wrap=True)


def _write_docs(store: Path, path: Path) -> None:
    from imsvd.reproduction.page import write_page  # noqa: PLC0415

    names = write_page(store, path)
    told = ", ".join(names) if names else f"none yet, for {store} has none"
    console.print(f"{path}: results of {told}", highlight=False, soft_wrap=True)
