"""Serving the explorer from this machine: address, port, access token."""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from rich.console import Console

from imsvd.errors import InputError
from imsvd.explorer import browser as browsing
from imsvd.explorer.app import create_app
from imsvd.explorer.connections import Server
from imsvd.explorer.guard import EVERYWHERE, ip_address
from imsvd.explorer.places import open_places


def serve(
    places: Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    allow_network: bool = False,
    browser: bool = True,
    console: Console | None = None,
) -> None:
    """Serve explained runs and indexes until Ctrl-C.

    Args:
        places: run folders, indexes, and folders that hold some.
        host: address to listen on.
        port: port to listen on; 0 picks a free one.
        token: access token; generated if the network is allowed and none is given.
        allow_network: whether `host` may be reachable from other machines.
        browser: whether to open a browser, if `console` is a terminal on a machine with a display, not over SSH,
            and the address is for this machine only.
        console: where to print the address.
    """
    console = console or Console(quiet=True)
    token = checked_token(host, token, allow_network)
    with listen(host, port) as opened:
        found = int(opened.getsockname()[1])
        with console.status("Opening…"):
            found_places = open_places(places)
        for path, reason in found_places.skipped:
            console.print(
                f"Skipped {path}: {reason}", markup=False, highlight=False, soft_wrap=True
            )
        app = create_app(found_places, host=host, port=found, token=token)
        url = address(host, found, token)
        console.print(f"Explorer: {url}   (Ctrl-C to stop)", highlight=False, soft_wrap=True)
        made = server(app)
        remote = allow_network or not is_loopback(host)
        if browser and browsing.is_wanted(on_terminal=console.is_terminal, remote=remote):
            browsing.open_when_ready(url, lambda: made.started)
        # Whether uvicorn raises Ctrl-C again depends on the signal handler installed before it.
        with contextlib.suppress(KeyboardInterrupt):
            made.run(sockets=[opened])
        console.print("Stopped.")


def server(app: FastAPI) -> Server:
    """Return a server for the application; `run` it."""
    return Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            # Malformed requests are worth no line each: anyone could fill the terminal with them.
            log_level="error",
            access_log=False,
            server_header=False,
            # Else everyone on this machine could claim any address, and guess tokens without limit.
            proxy_headers=False,
        )
    )


def checked_token(host: str, token: str | None, allow_network: bool) -> str | None:
    """Return the access token; refuse a public address unless `allow_network` is set."""
    if token is not None and not re.fullmatch(r"[A-Za-z0-9_-]{16,}", token):
        raise InputError(
            "--token must have at least 16 letters, digits, '-' or '_'; "
            "with --allow-network and no --token, one is generated."
        )
    if is_loopback(host):
        return token
    if not allow_network:
        raise InputError(
            f"--host {host} is reachable from other machines; add --allow-network to permit this "
            "(an access token is then required and printed)."
        )
    return token or secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    parsed = ip_address(host)
    return host.lower() == "localhost" or (parsed is not None and parsed.is_loopback)


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, or raise `InputError` with the reason."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        # asyncio sets TCP_NODELAY only if the protocol is named; without it, small responses on
        # a kept connection wait 40 ms.
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(f"--host {host} --port {port} is not a valid address: {error}.") from error
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(where)
        opened.listen()
    except (OSError, OverflowError) as error:
        opened.close()
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise InputError(
            f"port {port} is in use, perhaps by another explorer; choose another with --port."
            if in_use
            else f"cannot listen on {host}:{port} ({error}); choose another --host or --port."
        ) from error
    return opened


def address(host: str, port: int, token: str | None) -> str:
    """Return the URL to open in a browser."""
    name = socket.gethostname() if host in EVERYWHERE else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?token={token}" if token is not None else "")
