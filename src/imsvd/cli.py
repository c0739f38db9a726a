"""The command line: each verb parses, calls one function and prints what a person needs."""

from __future__ import annotations

import errno
import inspect
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imsvd import __version__
from imsvd.errors import InputError, Interrupted

app = typer.Typer(
    name="imsvd",
    help="Turn a folder of unlabelled images into an encoder, discrete codes and explanations.\n\n"
    "Start with `imsvd demo`; then `imsvd pretrain FOLDER --out runs/a`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
evaluate = typer.Typer(
    help="Measure how good a run's features are; results also go to RUN/results.jsonl.",
    no_args_is_help=True,
)
bench = typer.Typer(
    help="Measure speed and memory on this machine, as ratios against named alternatives.",
    no_args_is_help=True,
)
app.add_typer(evaluate, name="evaluate")
app.add_typer(bench, name="bench")
console = Console()

Data = Annotated[
    str, typer.Argument(help="A folder of images, or shapes, cifar10, cifar100, stl10.")
]
Splits = Annotated[
    str,
    typer.Argument(help="A labelled folder with train/ and test/ (or val/), or a dataset's name."),
]
Run = Annotated[Path, typer.Argument(help="The folder that `imsvd pretrain --out` wrote.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override any setting, such as optimizer.lr=0.3; `imsvd recipes --keys` lists them.",
    ),
]


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


@evaluate.command("knn")
def evaluate_knn(
    run: Run,
    data: Splits,
    k: Annotated[
        list[int] | None,
        typer.Option(help="Number of neighbours; repeat for several. Default: 20 and 200."),
    ] = None,
) -> None:
    """Classify test images by their nearest training images (cosine, weighted votes)."""
    from imsvd import api  # noqa: PLC0415

    _print_metrics(api.evaluate_knn(run, data, neighbours=k or (20, 200), console=console))


@evaluate.command("linear-probe")
def evaluate_linear_probe(run: Run, data: Splits) -> None:
    """Fit a linear classifier on cached features: quick, and not the paper's augmented protocol."""
    from imsvd import api  # noqa: PLC0415

    _print_metrics(api.evaluate_linear_probe(run, data, console=console))


@bench.command("loss")
def bench_loss(
    sizes: Annotated[
        str,
        typer.Option(metavar="N,D …", help="Batch and width, comma between, space between sizes."),
    ] = "256,8160 2048,8160 2048,16320 512,65280",
    ranks: Annotated[str, typer.Option(help="Numbers of gloo processes, such as 1,2,4.")] = "1",
    repeats: Annotated[int, typer.Option(help="Fresh processes per case; the median counts.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Also write the table here, as .json and .md.")
    ] = None,
) -> None:
    """Time and memory of IMSVD's loss against its floor, its dense form and its peers."""
    from imsvd.bench.loss import run as run_bench  # noqa: PLC0415

    run_bench(_number_pairs(sizes), _numbers(ranks), repeats, console, output=output)


@bench.command("views")
def bench_views(
    images: Annotated[Path, typer.Argument(help="A folder of full-size JPEGs.")],
    small: Annotated[
        Path | None, typer.Option(help="A folder of small images, such as CIFAR-10.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Processor time of one measurement.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Also write the table here, as .json and .md.")
    ] = None,
) -> None:
    """Images per second and core through our augmentation and through its alternatives."""
    from imsvd.bench.views import run as run_bench  # noqa: PLC0415

    run_bench(images, small, seconds, console, output)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe's settings in full.")] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="List every key that --set accepts.")
    ] = False,
) -> None:
    """List the recipes, or show one."""
    from imsvd.config import setting_keys, to_yaml  # noqa: PLC0415
    from imsvd.recipes import RECIPES  # noqa: PLC0415
    from imsvd.recipes import recipe as find  # noqa: PLC0415

    if keys:
        console.print("\n".join(setting_keys()), highlight=False)
    elif name:
        console.print(to_yaml(find(name)), highlight=False, markup=False)
    else:
        for title, function in RECIPES.items():
            console.print(f"[bold]{title}[/bold]\n{inspect.getdoc(function)}\n", highlight=False)


@app.command()
def info(run: Run) -> None:
    """Show where a run stands: configuration, last epoch, results."""
    from imsvd.evaluation import read_results  # noqa: PLC0415
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


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        console.print(f"imsvd {__version__}", highlight=False)
        raise typer.Exit


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of whole numbers such as 1,2,4.") from None


def _number_pairs(text: str) -> tuple[tuple[int, int], ...]:
    pairs = tuple(_numbers(pair) for pair in text.split())
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise InputError(f"{text!r} is not a list of sizes such as '256,8160 2048,8160'.")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _print_metrics(metrics: dict[str, float]) -> None:
    table = Table("measure", "%")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.2f}")
    console.print(table)


def main() -> None:
    """Run the command line; bad input ends with one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _fail(
            f"the disk is full ({error.filename or 'no file named'}); "
            "free some space and run the same command to resume."
        )
    except Interrupted as interruption:
        sys.exit(interruption.exit_code)


def _fail(sentence: str) -> None:
    Console(stderr=True).print(
        f"[red]imsvd:[/red] {escape(sentence)}", highlight=False, soft_wrap=True
    )
    sys.exit(2)
