"""The program itself: its name, its groups of commands, and what ends it."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from imsvd import __version__
from imsvd.errors import InputError, Interrupted

app = typer.Typer(
    name="imsvd",
    help="Turn a folder of unlabeled images into an encoder, discrete codes and explanations.\n\n"
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


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
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
            f"the disk is full ({error.filename or 'no file named'}); "
            "free some space and run the same command to resume."
        )
    except Interrupted as interruption:
        sys.exit(interruption.exit_code)
    except RuntimeError as error:
        # Named, not imported: torch takes a second to load, and most mistakes are found before.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        _fail(
            "the GPU is out of memory; free it from other programs, lower the batch size with --set, "
            "or add --set compute.accelerator=cpu."
        )


def _fail(sentence: str) -> None:
    Console(stderr=True).print(
        f"[red]imsvd:[/red] {escape(sentence)}", highlight=False, soft_wrap=True
    )
    sys.exit(2)
