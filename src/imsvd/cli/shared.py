"""Arguments that several commands take, and how they are read and answered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from imsvd.cli.app import console
from imsvd.errors import InputError

Data = Annotated[
    str, typer.Argument(help="A folder of images, or shapes, cifar10, cifar100, stl10.")
]
Splits = Annotated[
    str,
    typer.Argument(help="A labeled folder with train/ and test/ (or val/), or a dataset's name."),
]
Run = Annotated[Path, typer.Argument(help="The folder that `imsvd pretrain --out` wrote.")]
Spec = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run folder, untrained:RUN, or timm:NAME, timm:NAME:random, timm:NAME:FILE; "
        "also torchvision:….",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override any setting, such as optimizer.lr=0.3; `imsvd recipes --keys` lists them.",
    ),
]
ProtocolEpochs = Annotated[
    int | None, typer.Option("--epochs", help="Train for another number than the published one.")
]
ProtocolSets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting of the protocol, such as head_lr=0.1 or compute.devices=2.",
    ),
]


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers such as 1,2,4."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of whole numbers such as 1,2,4.") from None


def factors(text: str) -> tuple[float, ...]:
    """Read numbers such as 0.33,1,3."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of numbers such as 0.33,1,3.") from None


def number_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Read sizes such as "256,8160 2048,8160"."""
    pairs = tuple(whole_numbers(pair) for pair in text.split())
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise InputError(f"{text!r} is not a list of sizes such as '256,8160 2048,8160'.")
    return tuple((pair[0], pair[1]) for pair in pairs)


def width_lists(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read the layers of two projectors such as "8192,8160 8192,8192,8192"."""
    lists = [whole_numbers(part) for part in text.split()]
    if len(lists) != 2:
        raise InputError(
            f"{text!r} is not two lists of widths, such as '8192,8160 8192,8192,8192'."
        )
    return lists[0], lists[1]


def say_where(run: str) -> None:
    """Name the file that has the result of a backbone, which has no run folder."""
    from imsvd.encoder import results_folder  # noqa: PLC0415

    if (folder := results_folder(run)) != Path(run):
        console.print(f"Recorded in {folder / 'results.jsonl'}", highlight=False, soft_wrap=True)


def print_trained(run: str, metrics: dict[str, float]) -> None:
    """Show what several processes may have computed together, once."""
    from imsvd.distributed import rank  # noqa: PLC0415

    if rank() == 0:
        print_metrics(metrics)
        say_where(run)


def print_metrics(metrics: dict[str, float]) -> None:
    """Show percentages as a table."""
    table = Table("measure", "%")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.2f}")
    console.print(table)
