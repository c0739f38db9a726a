"""`imsvd bench …`: one command per benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imsvd.cli.app import bench, console, number_pairs, whole_numbers, width_lists


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

    run_bench(number_pairs(sizes), whole_numbers(ranks), repeats, console, output=output)


@bench.command("heads")
def bench_heads(
    batch: Annotated[int, typer.Option(help="Images of all processes together.")] = 2048,
    widths: Annotated[
        str,
        typer.Option(
            metavar="W,… W,…",
            help="Layers of IMSVD's projector, then of VICReg's and Barlow Twins'.",
        ),
    ] = "8192,8160 8192,8192,8192",
    repeats: Annotated[int, typer.Option(help="Fresh processes per case; the median counts.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Also write the tables here, as .json and .md.")
    ] = None,
) -> None:
    """Projector and loss of IMSVD against those of VICReg and Barlow Twins, alone and in a whole step."""
    from imsvd.bench.heads import run as run_bench  # noqa: PLC0415

    run_bench(batch, width_lists(widths), repeats, console, output)


@bench.command("views")
def bench_views(
    images: Annotated[Path, typer.Argument(help="A folder of full-size JPEGs.")],
    small: Annotated[
        Path | None, typer.Option(help="A folder of small images, such as CIFAR-10.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Processor time of one measurement.")] = 3,
    repeats: Annotated[int, typer.Option(help="Fresh processes per case; the median counts.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Also write the table here, as .json and .md.")
    ] = None,
) -> None:
    """Images per second and core through our augmentation and through its alternatives."""
    from imsvd.bench.views import run as run_bench  # noqa: PLC0415

    run_bench(images, small, seconds, console, output, repeats=repeats)


@bench.command("step")
def bench_step(
    networks: Annotated[
        str, typer.Option(metavar="NAME,…", help="small, resnet18, or both with a comma.")
    ] = "small,resnet18",
    seconds: Annotated[float, typer.Option(help="Least duration of one measurement.")] = 5,
    repeats: Annotated[int, typer.Option(help="Fresh processes per case; the median counts.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Also write the table here, as .json and .md.")
    ] = None,
) -> None:
    """A whole step of training on small images, against a loop written with lightly."""
    from imsvd.bench.step import run as run_bench  # noqa: PLC0415

    names = [name.strip() for name in networks.split(",") if name.strip()]
    run_bench(names, seconds, repeats, console, output)


@bench.command("index")
def bench_index(
    images: Annotated[int, typer.Option(help="Tiny images in the folder made for it.")] = 20_000,
    repeats: Annotated[int, typer.Option(help="Measurements; the median counts.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Also write the table here, as .json and .md.")
    ] = None,
) -> None:
    """Seconds to open a folder of many images, at first and again, against torchvision."""
    from imsvd.bench.index import run as run_bench  # noqa: PLC0415

    run_bench(images, repeats, console, output)


@bench.command("knn")
def bench_knn(
    queries: Annotated[int, typer.Option(help="Features that ask.")] = 10_000,
    bank: Annotated[int, typer.Option(help="Features that answer.")] = 200_000,
    width: Annotated[int, typer.Option(help="Of the features.")] = 512,
    neighbors: Annotated[int, typer.Option(help="How many to find for each.")] = 200,
    repeats: Annotated[int, typer.Option(help="Fresh processes per case; the median counts.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Also write the table here, as .json and .md.")
    ] = None,
) -> None:
    """Time and memory of our exact nearest neighbors against faiss and scikit-learn."""
    from imsvd.bench.knn import run as run_bench  # noqa: PLC0415

    run_bench(queries, bank, width, neighbors, repeats, console, output)
