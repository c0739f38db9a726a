"""Opening the explorer in a browser, where somebody sits in front of one."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Callable

PATIENCE = 10.0
"""Seconds to wait for the server."""


def is_wanted(*, on_terminal: bool, remote: bool) -> bool:
    """Return whether a browser would open in front of the user.

    Args:
        on_terminal: whether a person reads the output; scripts and tests do not want a window.
        remote: whether the address is meant for other machines.
    """
    return on_terminal and not remote and not _is_over_ssh() and _has_display()


def open_when_ready(url: str, is_ready: Callable[[], bool]) -> threading.Thread:
    """Open a URL from a thread, as soon as the server is ready.

    Failures are silent: the address is printed anyway.
    """
    thread = threading.Thread(target=_open, args=(url, is_ready), daemon=True)
    thread.start()
    return thread


def _open(url: str, is_ready: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_ready():
        if time.monotonic() > until:
            return
        time.sleep(0.05)
    with contextlib.suppress(webbrowser.Error, OSError):
        controller = webbrowser.get()
        # Such as lynx, which would take over the terminal; a user who set $BROWSER wants it.
        is_textual = type(controller) is webbrowser.GenericBrowser
        if not is_textual or os.environ.get("BROWSER"):
            controller.open(url)


def _is_over_ssh() -> bool:
    """Return whether a browser would open on another machine than the one with the screen."""
    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def _has_display() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
