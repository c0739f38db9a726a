"""The command that shows explained runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imsvd.cli.app import app, console
from imsvd.errors import InputError


@app.command()
def explore(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Runs that `imsvd explain` has explained.", metavar="RUN…"),
    ],
    port: Annotated[
        int, typer.Option(help="Where to listen; 0 takes a free port.", min=0, max=65535)
    ] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(help="Ask everyone for this; made up where the network is allowed."),
    ] = None,
    allow_network: Annotated[
        bool,
        typer.Option("--allow-network", help="Let other machines in that bring the token."),
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
) -> None:
    """Look at explained runs in a browser: units, images, maps, your own image; Ctrl-C ends it.

    Run `imsvd explain RUN DATA` first. Several runs are shown side by side.
    """
    try:
        from imsvd.explorer import serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise InputError(
            f"the explorer needs {error.name}, which is not installed; "
            "`pip install 'imsvd[explorer]'` brings it."
        ) from error
    serve(
        runs,
        host=host,
        port=port,
        token=token,
        allow_network=allow_network,
        browser=not no_browser,
        console=console,
    )
