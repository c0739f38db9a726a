"""Commands that train: demo, pretrain, compare; and what to ask before and after."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from imsvd.cli.app import app, console
from imsvd.cli.shared import (
    Data,
    Run,
    Sets,
    Splits,
    factors,
    whole_numbers,
)
from imsvd.errors import InputError


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Run folder; an interrupted demo in it is resumed.")
    ] = Path("runs/demo"),
    settings: Sets = None,
) -> None:
    """Train on built-in images in a few minutes and see what was learned."""
    from imsvd.demo import run_demo  # noqa: PLC0415 - torch takes seconds to import; --help must not

    run_demo(out, console, settings or [])


@app.command()
def pretrain(
    data: Data,
    out: Annotated[
        Path, typer.Option(help="Run folder; if it holds this run already, it is resumed.")
    ],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A name from `imsvd recipes`; by default chosen from images and hardware."
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Train with another method than the recipe's.")
    ] = None,
    settings: Sets = None,
) -> None:
    """Train an encoder on a folder of images; kill it at any moment and run it again to resume."""
    from imsvd.api import configure  # noqa: PLC0415
    from imsvd.distributed import rank  # noqa: PLC0415
    from imsvd.figures import draw_training  # noqa: PLC0415
    from imsvd.runs import RunFolder  # noqa: PLC0415
    from imsvd.training import train  # noqa: PLC0415

    config = configure(data, recipe_name=recipe, method=method, settings=settings or [])
    run = RunFolder(out)
    train(config, run, console)
    if rank() == 0:
        picture = draw_training(run.metrics(), out / "training.png")
        console.print(f"Encoder: {run.encoder_weights}   Picture: {picture}", highlight=False)


@app.command()
def compare(  # noqa: PLR0913 - its options are its interface
    data: Splits,
    *,
    out: Annotated[
        Path,
        typer.Option(help="Folder for runs and results; what it already holds is not repeated."),
    ],
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="Methods, with commas between. Default: all, or only the variants.",
        ),
    ] = "",
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=METHOD,KEY=VALUE,…",
            help="Also compare a method with other settings, under a name of its own; repeatable.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A name from `imsvd recipes`; by default chosen from images and hardware."
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N", help="How many seeds, such as 3, or which, such as 0,1,2.")
    ] = "3",
    lr_factors: Annotated[
        str,
        typer.Option(
            metavar="F,…",
            help="Try each method's learning rate times these; held-out training images choose.",
        ),
    ] = "0.33,1,3",
    epochs: Annotated[int | None, typer.Option(help="Epochs of every run.")] = None,
    knn_every: Annotated[
        int | None, typer.Option(help="Epochs between the checks that make the plot.")
    ] = None,
    parallel: Annotated[
        int, typer.Option(help="Runs at a time; each gets its share of the cores.")
    ] = 1,
    settings: Sets = None,
) -> None:
    """Train methods on the same data, backbone, budget and seeds; kill it and run it again to go on."""
    from imsvd.compare import compare_methods  # noqa: PLC0415

    comparison = compare_methods(
        data,
        out,
        methods=[name.strip() for name in methods.split(",") if name.strip()],
        variants=variant or [],
        recipe=recipe,
        seeds=whole_numbers(seeds) if "," in seeds else whole_numbers(seeds)[0],
        lr_factors=factors(lr_factors),
        epochs=epochs,
        knn_every=knn_every,
        settings=settings or [],
        parallel=parallel,
        console=console,
    )
    console.print(f"Table: {out / 'comparison.md'}", markup=False, highlight=False, soft_wrap=True)
    if (plot := out / "accuracy.png").exists():
        console.print(f"Plot: {plot}", markup=False, highlight=False, soft_wrap=True)
    if comparison.failures:
        raise typer.Exit(1)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe's settings in full.")] = None,
    method: Annotated[
        str | None, typer.Option(help="With NAME: show the recipe's settings for this method.")
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="List every key that --set accepts, and what it is for.")
    ] = False,
) -> None:
    """List the recipes, or show one."""
    from imsvd.config import describe_settings, to_yaml  # noqa: PLC0415
    from imsvd.recipes import RECIPES  # noqa: PLC0415
    from imsvd.recipes import recipe as find  # noqa: PLC0415

    if keys:
        _print_pairs(sorted(describe_settings().items()))
    elif name:
        console.print(to_yaml(find(name, method or "imsvd")), highlight=False, markup=False)
    elif method:
        raise InputError(f"--method {method} needs a recipe; choose from {', '.join(RECIPES)}.")
    else:
        for title, function in RECIPES.items():
            console.print(f"[bold]{title}[/bold]\n{inspect.getdoc(function)}\n", highlight=False)


def _print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print two columns; a line each, divided by a tab, for other programs."""
    if not console.is_terminal:
        for pair in pairs:
            typer.echo("\t".join(pair))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    for key, description in pairs:
        table.add_row(key, escape(description))
    console.print(table, highlight=False)


@app.command()
def info(run: Run) -> None:
    """Show where a run stands: configuration, last epoch, results."""
    from imsvd.evaluation.results import read_results  # noqa: PLC0415
    from imsvd.runs import RunFolder  # noqa: PLC0415

    folder = RunFolder(run)
    config = folder.config()
    records = folder.metrics()
    table = Table(show_header=False, box=None)
    table.add_row("method", f"{config.method.name} on {config.backbone.name}")
    table.add_row("data", config.data.source)
    table.add_row("epochs", f"{records[-1]['epoch'] if records else 0} of {config.training.epochs}")
    if records:
        last = records[-1]
        table.add_row(
            "loss",
            f"{last['loss']:.3f}  ({', '.join(f'{name} {value:.3f}' for name, value in last['terms'].items())})",
        )
        table.add_row(
            "health", ", ".join(f"{name} {value:.3g}" for name, value in last["health"].items())
        )
        table.add_row(
            "time",
            f"{last['total_seconds'] / 60:.1f} min, {last['images_per_second']:.0f} images/s",
        )
    if folder.bad_images.exists():
        table.add_row(
            "bad images",
            f"{len(folder.bad_images.read_text().splitlines())}, listed in {folder.bad_images}",
        )
    for result in read_results(run):
        table.add_row(result["protocol"], f"{json.dumps(result['metrics'])}  on {result['data']}")
    console.print(table)
