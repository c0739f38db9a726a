"""The program `imsvd`: its commands by panel, how it ends, and arguments that commands share."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from imsvd import __version__
from imsvd.errors import InputError, Interrupted

PANELS = {
    "Start here": ("demo", "recipes"),
    "Train": ("pretrain", "discretize", "compare"),
    "Evaluate": ("evaluate", "results", "scenes"),
    "Look": ("info", "explain", "explore", "replay"),
    "Put codes to work": ("index", "add", "remove", "name", "search", "duplicates"),
    "Survey images": ("outliers", "coverage", "select", "drift"),
    "Share": ("codes", "export"),
    "Measure": ("bench", "reproduce"),
}
"""Commands as `imsvd --help` shows them."""


class _Panels(TyperGroup):
    """Lists the commands in the order of `PANELS`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        for name, command in self.commands.items():
            command.rich_help_panel = panels.get(name)  # type: ignore[attr-defined]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands; one that is in no panel comes last."""
        order = [name for names in PANELS.values() for name in names]
        return sorted(super().list_commands(ctx), key=[*order, *self.commands].index)


app = typer.Typer(
    name="imsvd",
    cls=_Panels,
    help="Train image encoders and discrete codes without labels, and look at what they learned.\n\n"
    "Start with `imsvd demo`. Then train on your own images: "
    "`imsvd pretrain FOLDER --out runs/a`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
evaluate = typer.Typer(
    help="Measure the quality of an encoder; results are also appended to RUN/results.jsonl.",
    no_args_is_help=True,
)
bench = typer.Typer(
    help="Measure speed and memory on this machine, relative to alternatives.",
    no_args_is_help=True,
)
app.add_typer(evaluate, name="evaluate")
app.add_typer(bench, name="bench")
console = Console()


def argument(metavar: str, text: str, **settings: Any) -> Any:
    """Describe an argument."""
    return typer.Argument(metavar=metavar, help=text, **settings)


def option(metavar: str, text: str, *names: str, **settings: Any) -> Any:
    """Describe an option that takes a value."""
    return typer.Option(*names, metavar=metavar, help=text, **settings)


Data = Annotated[
    str,
    argument(
        "DATA",
        "Images: a folder, an archive, or a dataset name (shapes, cifar10, cifar100, stl10).",
    ),
]
Splits = Annotated[
    str,
    argument(
        "DATA", "Labeled images: a folder with train/ and test/ (or val/), or a dataset name."
    ),
]
Run = Annotated[
    Path, argument("RUN", "Run folder, as written by `imsvd pretrain` or `imsvd discretize`.")
]
Spec = Annotated[
    str,
    argument(
        "RUN",
        "Run folder, or another encoder: untrained:RUN, timm:NAME, timm:NAME:random, "
        "timm:NAME:FILE; likewise torchvision:NAME; hf:OWNER/NAME from the Hugging Face Hub; or what "
        "`imsvd export` wrote as safetensors, huggingface, timm or onnx.",
    ),
]
RecipeName = Annotated[
    str | None,
    option("NAME", "A recipe from `imsvd recipes`. Default: chosen by image size and hardware."),
]
Seeds = Annotated[str, option("N", "Number of seeds, or the seeds themselves, such as 0,1,2.")]
Parallel = Annotated[int, option("N", "Simultaneous runs; they share the cores.")]
Sets = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Change a setting, such as optimizer.lr=0.3; repeatable. "
        "`imsvd recipes --keys` lists all keys.",
        "--set",
    ),
]


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        console.print(f"imsvd {__version__}", highlight=False)
        raise typer.Exit


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
            f"the disk is full ({error.filename or 'unknown file'}); "
            "free some space and run the same command to resume."
        )
    except Interrupted as interruption:
        sys.exit(interruption.exit_code)
    except RuntimeError as error:
        if (sentence := _explain(error)) is None:
            raise
        _fail(sentence)


def _explain(error: RuntimeError) -> str | None:
    """Return one sentence for an error of the hardware, or None for a bug."""
    # By name: importing torch takes a second, and most mistakes are found before.
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return (
            "the GPU is out of memory; close other programs that use it, reduce the batch size "
            "with --set, or add --set compute.accelerator=cpu."
        )
    if str(error).startswith("DataLoader worker"):  # raised wherever the signal of its end arrives
        return (
            "a process that reads images was killed, probably because memory ran out; free some memory "
            "or lower compute.workers, and run the same command to resume."
        )
    if kind in ("DistBackendError", "DistNetworkError", "DistStoreError") or "gloo" in str(error):
        return (
            "another process of this run has ended or does not answer "
            f"({' '.join(str(error).split())[:200].rstrip('.')}); see what it printed, and run the same "
            "command to resume from the last checkpoint."
        )
    return None


def _fail(sentence: str) -> None:
    Console(stderr=True).print(
        f"[red]imsvd:[/red] {escape(sentence)}", highlight=False, soft_wrap=True
    )
    sys.exit(2)


def print_path(title: str, path: Path | str) -> None:
    """Print a path or a command on one line, however long, so that it can be copied."""
    console.print(f"{title}: {path}", markup=False, highlight=False, soft_wrap=True)


def name_list(text: str) -> list[str]:
    """Parse a list of names such as "imsvd,vicreg"."""
    return [name.strip() for name in text.split(",") if name.strip()]


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse a list of integers such as "1,2,4"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of integers such as 1,2,4.") from None


def number_or_auto(name: str, value: str) -> int | None:
    """Return the number that an option was given, or None for auto."""
    if value == "auto":
        return None
    try:
        return int(value)
    except ValueError as error:
        raise InputError(f"{name} {value} is neither a number nor auto.") from error
