"""Serving the explorer from this machine: where it may listen, and what its address is."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from rich.console import Console

from imsvd.errors import InputError
from imsvd.explorer.app import create_app
from imsvd.explorer.explained_run import open_run
from imsvd.explorer.guard import EVERYWHERE

SHORTEST_TOKEN = 16


def serve(
    runs: Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    allow_network: bool = False,
    browser: bool = True,
    console: Console | None = None,
) -> None:
    """Serve explained runs until Ctrl-C.

    Args:
        runs: run folders, numbered as they come.
        host: the address to listen at.
        port: the port to listen at; 0 takes a free one.
        token: what every request must bring; made up where the network is allowed.
        allow_network: whether other machines may be let in.
        browser: whether to open a browser.
        console: where the address is shown.
    """
    console = console or Console(quiet=True)
    token = checked_token(host, token, allow_network)
    with listen(host, port) as opened:
        found = int(opened.getsockname()[1])
        with console.status("Opening…"):
            explained = [open_run(run) for run in runs]
        app = create_app(explained, host=host, port=found, token=token)
        url = address(host, found, token)
        console.print(f"Explorer: {url}   (Ctrl-C ends it)", highlight=False, soft_wrap=True)
        if browser and _has_display():
            threading.Timer(0.5, webbrowser.open, [url]).start()
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, ws="none", server_header=False
        )
        # Whether Ctrl-C comes through after the server has ended depends on who handled it before.
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[opened])
        console.print("Stopped.")


def checked_token(host: str, token: str | None, allow_network: bool) -> str | None:
    """The token that requests must bring; refuses to let the network in unasked."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not _is_plain(token)):
        raise InputError(
            f"--token must have at least {SHORTEST_TOKEN} letters, digits, '-' or '_'; "
            "leave it away and one is made up."
        )
    if is_loopback(host):
        return token
    if not allow_network:
        raise InputError(
            f"--host {host} would let other machines in; add --allow-network if that is meant "
            "(they then need the token that is printed)."
        )
    return token or secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address, or a sentence about why it cannot."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        # Only where the protocol is named does asyncio send small answers without a delay of 40 ms.
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(
            f"--host {host} --port {port} is not a possible address: {error}."
        ) from error
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(where)
        opened.listen()
    except (OSError, OverflowError) as error:
        opened.close()
        raise InputError(_why_not(host, port, error)) from error
    return opened


def _why_not(host: str, port: int, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"port {port} is in use, perhaps by another explorer; choose another with --port."
    return f"{host}:{port} cannot be listened at ({error}); choose others with --host and --port."


def address(host: str, port: int, token: str | None) -> str:
    """What to open in a browser."""
    name = socket.gethostname() if host in EVERYWHERE else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?token={token}" if token is not None else "")


def _is_plain(token: str) -> bool:
    return token.isascii() and token.replace("-", "").replace("_", "").isalnum()


def _has_display() -> bool:
    """Whether a browser would be a window, and not take over this terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
