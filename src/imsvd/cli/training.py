"""Commands that train or prepare training: demo, recipes, pretrain, discretize, compare, scenes."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from imsvd.cli.app import (
    Data,
    Parallel,
    RecipeName,
    Seeds,
    Sets,
    Splits,
    app,
    argument,
    console,
    name_list,
    number_or_auto,
    option,
    print_path,
    whole_numbers,
)
from imsvd.errors import InputError


@app.command()
def demo(
    out: Annotated[Path, option("RUN", "Run folder; an interrupted demo is resumed.")] = Path(
        "runs/demo"
    ),
    settings: Sets = None,
) -> None:
    """Train on built-in images for a few minutes and show what was learned."""
    from imsvd.demo import run_demo  # noqa: PLC0415 - torch takes seconds to import; --help must not

    run_demo(out, console, settings or [])


@app.command()
def recipes(
    name: Annotated[str | None, argument("NAME", "Recipe to show in full.")] = None,
    method: Annotated[
        str | None, option("METHOD", "With NAME: show the recipe for this method.")
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="List every key that --set accepts, with its meaning.")
    ] = False,
    table: Annotated[
        bool,
        typer.Option("--table", help="List how each method departs from IMSVD's recipes, and why."),
    ] = False,
) -> None:
    """List the training recipes, or show the settings of one."""
    from imsvd.config import describe_settings, to_yaml  # noqa: PLC0415
    from imsvd.recipes import RECIPES, recipe_rows  # noqa: PLC0415
    from imsvd.recipes import recipe as find  # noqa: PLC0415

    if keys:
        _print_columns(sorted(describe_settings().items()))
    elif table:
        _print_columns(recipe_rows())
    elif name:
        console.print(to_yaml(find(name, method or "imsvd")), highlight=False, markup=False)
    elif method:
        raise InputError(f"--method {method} needs a recipe; choose from {', '.join(RECIPES)}.")
    else:
        for title, function in RECIPES.items():
            console.print(f"[bold]{title}[/bold]\n{inspect.getdoc(function)}\n", highlight=False)


def _print_columns(rows: Iterable[tuple[str, ...]]) -> None:
    """Print columns, separated by tabs if the output goes to another program."""
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join(row))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    for key, *others in rows:
        table.add_row(key, *map(escape, others))
    console.print(table, highlight=False)


@app.command()
def pretrain(
    data: Data,
    out: Annotated[Path, option("RUN", "Run folder; an interrupted run is resumed.")],
    recipe: RecipeName = None,
    method: Annotated[
        str | None, option("METHOD", "Training method. Default: the recipe's.")
    ] = None,
    init: Annotated[
        str | None,
        option(
            "ENCODER",
            "Continue from pretrained weights: a run folder, timm:NAME, timm:NAME:FILE; likewise "
            "torchvision:NAME.",
        ),
    ] = None,
    size: Annotated[
        int | None, option("N", "With --init: side of the views in pixels. Default: the encoder's.")
    ] = None,
    settings: Sets = None,
) -> None:
    """Train an encoder on unlabeled images.

    Safe to interrupt; run the same command to resume.
    """
    from imsvd.distributed import rank  # noqa: PLC0415
    from imsvd.figures import draw_training  # noqa: PLC0415
    from imsvd.pretraining import train  # noqa: PLC0415
    from imsvd.pretraining.improvement import describe_gap, describe_improvement  # noqa: PLC0415
    from imsvd.pretraining.pretrain import configure  # noqa: PLC0415
    from imsvd.runs import RunFolder  # noqa: PLC0415

    config = configure(
        data, recipe_name=recipe, method=method, init=init, size=size, settings=settings or []
    )
    run = RunFolder(out)
    train(config, run, console)
    if rank() == 0:
        records = run.metrics()
        curves = draw_training(records, out / "training.png")
        if config.init is not None:
            verdict = describe_improvement(records) or describe_gap(config)
            console.print(verdict, highlight=False)
        print_path("Encoder", run.encoder_weights)
        print_path("Curves", curves)


@app.command()
def discretize(  # noqa: PLR0913 - its options are its interface
    encoder: Annotated[
        str,
        argument(
            "ENCODER",
            "Encoder to give a code, which stays as it is: a run folder, timm:NAME, timm:NAME:FILE; "
            "likewise torchvision:NAME; or what `imsvd export` wrote as safetensors, timm or onnx.",
        ),
    ],
    data: Data,
    *,
    out: Annotated[Path, option("RUN", "Run folder; an interrupted run is resumed.")],
    bits: Annotated[
        str, option("N", "Bits of the code: 16, 32, 64, 128 or another number; auto chooses.")
    ] = "auto",
    units: Annotated[
        str, option("N", "Units of every variable, a power of two; auto chooses, without labels.")
    ] = "auto",
    views: Annotated[int, option("N", "Augmented views per image.")] = 4,
    steps: Annotated[int, option("N", "Training steps, completed to a whole pass.")] = 400,
    size: Annotated[
        int | None, option("N", "Side of the images in pixels. Default: the encoder's.")
    ] = None,
    cache: Annotated[
        Path | None, option("FOLDER", "Folder for features, to share them. Default: RUN/features.")
    ] = None,
    settings: Sets = None,
) -> None:
    """Give any encoder a discrete code: train a small head on its features.

    Safe to interrupt; run the same command to resume.
    """
    from imsvd.discretizing import discretize as give_code  # noqa: PLC0415
    from imsvd.distributed import rank  # noqa: PLC0415
    from imsvd.figures import draw_capacity, draw_training  # noqa: PLC0415
    from imsvd.runs import RunFolder  # noqa: PLC0415

    described = give_code(
        encoder,
        data,
        out,
        bits=number_or_auto("--bits", bits),
        units=number_or_auto("--units", units),
        views=views,
        steps=steps,
        size=size,
        cache=cache,
        settings=settings or [],
        console=console,
    ).description
    run = RunFolder(out)
    records = run.metrics()
    if rank() == 0 and records:
        _describe_code(described.units, records[-1])
        curves = draw_training(records, out / "training.png")
        print_path("Encoder", run.encoder_weights)
        print_path("Curves", curves)
        if trials := run.trials():
            print_path("Sizes tried", draw_capacity(trials, out / "capacity.png"))
        for purpose, words in (
            ("To see it", ("explain", out, data)),
            ("To explore it", ("explore", out)),
        ):
            print_path(purpose, f"imsvd {shlex.join(map(str, words))}")


def _describe_code(units: Sequence[int], record: Mapping[str, Any]) -> None:
    """Print the size of a code, and what held-out images showed in the last epoch."""
    from imsvd.progress import counted  # noqa: PLC0415

    text = f"Code: {len(units)} variables of {units[0]} units"
    health = record["health"]
    if "share_decided" in health:
        known = "held_out_images" in record  # by runs of this version on
        images = (
            counted(record["held_out_images"], "held-out image") if known else "held-out images"
        )
        text += (
            f"; on {images} {health['share_decided']:.0%} are decided, {health['share_agreeing']:.0%} "
            f"equal in two views, and two variables share {health['shared_nats']:.3f} nats"
        )
    console.print(f"{text}.", highlight=False)


@app.command()
def compare(  # noqa: PLR0913 - its options are its interface
    data: Splits,
    *,
    out: Annotated[
        Path, option("FOLDER", "Folder for runs and results; finished runs are not repeated.")
    ],
    recipe: RecipeName = None,
    methods: Annotated[
        str, option("METHOD,…", "Methods to compare. Default: all; none if --variant is given.")
    ] = "",
    variant: Annotated[
        list[str] | None,
        option(
            "NAME=METHOD,KEY=VALUE,…",
            "A method with changed settings, compared under a new name; repeatable.",
        ),
    ] = None,
    seeds: Seeds = "3",
    lr_factors: Annotated[
        str,
        option(
            "F,…",
            "Factors to try for each method's learning rate; held-out training images decide.",
        ),
    ] = "0.33,1,3",
    epochs: Annotated[int | None, option("N", "Epochs per run. Default: the recipe's.")] = None,
    knn_every: Annotated[
        int | None, option("N", "Epochs between the kNN accuracies shown in the plot.")
    ] = None,
    parallel: Parallel = 1,
    settings: Sets = None,
) -> None:
    """Compare methods on the same data with the same backbone, budget and seeds.

    Safe to interrupt; run the same command to resume.
    """
    from imsvd.compare import compare_methods  # noqa: PLC0415

    comparison = compare_methods(
        data,
        out,
        methods=name_list(methods),
        variants=variant or [],
        recipe=recipe,
        seeds=whole_numbers(seeds) if "," in seeds else whole_numbers(seeds)[0],
        lr_factors=_factors(lr_factors),
        epochs=epochs,
        knn_every=knn_every,
        settings=settings or [],
        parallel=parallel,
        console=console,
    )
    print_path("Table", out / "comparison.md")
    if (plot := out / "accuracy.png").exists():
        print_path("Plot", plot)
    if comparison.failures:
        raise typer.Exit(1)


def _factors(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of numbers such as 0.33,1,3.") from None


@app.command()
def scenes(
    folder: Annotated[Path, argument("FOLDER", "Folder to create, or to complete.")],
    layout: Annotated[str, option("FORMAT", "coco or voc.", "--format")] = "coco",
    images: Annotated[
        int, option("N", "Training scenes; half as many are added for testing.")
    ] = 500,
    size: Annotated[int, option("N", "Side of the images in pixels.")] = 128,
    seed: Annotated[int, option("N", "Random seed.")] = 0,
) -> None:
    """Draw a small detection dataset, to try `evaluate coco` and `evaluate voc07`."""
    from imsvd.datasets.drawn.scene_files import write_scenes  # noqa: PLC0415

    write_scenes(folder, images=images, size=size, seed=seed, layout=layout, console=console)
    print_path(f"{images} + {images // 2} scenes", folder)
