"""Addresses, ports and tokens, and the command that starts the explorer."""

import os
import signal
import socket
import sys
import threading
import time
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from imsvd.errors import InputError
from imsvd.explorer import browser
from imsvd.explorer.serving import address, checked_token, is_loopback, listen
from tests.pretraining.tiny import CommandLine

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.53"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    assert checked_token(host, None, False) is None
    assert checked_token(host, TOKEN, False) == TOKEN


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", ""])
def test_the_network_requires_permission_and_a_token(host: str) -> None:
    with pytest.raises(InputError, match="--allow-network"):
        checked_token(host, None, False)
    with pytest.raises(InputError, match="--allow-network"):
        checked_token(host, TOKEN, False)
    made = [checked_token(host, None, True) for _ in range(2)]
    assert all(token is not None and len(token) >= 32 for token in made)
    assert made[0] != made[1]
    assert checked_token(host, TOKEN, True) == TOKEN


@pytest.mark.parametrize(
    "token", ["", "short", "with a space in the middle", "sixteen;letters;=", "ä" * 20]
)
def test_weak_tokens_are_refused(token: str) -> None:
    with pytest.raises(InputError, match="--token must have at least 16"):
        checked_token("127.0.0.1", token, False)


def test_the_address_can_be_opened() -> None:
    assert address("127.0.0.1", 8000, None) == "http://127.0.0.1:8000/"
    assert address("::1", 8000, TOKEN) == f"http://[::1]:8000/?token={TOKEN}"
    assert address("0.0.0.0", 80, None) == f"http://{socket.gethostname()}:80/"


def test_a_port_in_use_is_reported_in_a_sentence() -> None:
    with listen("127.0.0.1", 0) as opened:
        # Without it, responses on a kept connection wait 40 ms.
        assert opened.proto == socket.IPPROTO_TCP
        port = opened.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is in use.*--port"):
            listen("127.0.0.1", port)
    with pytest.raises(InputError, match="not a valid address"):
        listen("no.such.host.invalid", 8000)


def test_the_command_refuses_what_it_cannot_serve(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    explore = ["explore", "--no-browser", "--port", "0"]
    command.refuses([*explore, str(trained)], "has not been explained yet", "imsvd explain")
    command.refuses([*explore, str(tmp_path / "none")], "is not a run folder")
    command.refuses([*explore, str(trained), "--host", "0.0.0.0"], "--allow-network")
    command.refuses([*explore, str(trained), "--token", "short"], "--token")


def test_without_its_libraries_the_command_names_the_extra(
    command: CommandLine, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("imsvd.explorer")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    command.refuses(["explore", str(trained)], "uvicorn", "imsvd[explorer]")


def test_the_command_serves_until_it_is_interrupted(command: CommandLine, explained: Path) -> None:
    with listen("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
    answers: list[bytes] = []
    visitor = threading.Thread(target=visit_and_interrupt, args=(port, answers))
    visitor.start()
    code = command(["explore", str(explained), "--port", str(port), "--no-browser"])
    visitor.join()
    assert code == 0
    assert b'"runs"' in answers[0]
    assert command.out.splitlines()[0].startswith(f"Explorer: http://127.0.0.1:{port}/ ")
    assert command.out.splitlines()[-1] == "Stopped."
    assert "Traceback" not in command.err


DESKTOP = {"DISPLAY": ":0"}


@pytest.mark.parametrize(
    ("environment", "on_terminal", "remote", "wanted"),
    [
        (DESKTOP, True, False, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True, False, True),
        (DESKTOP, False, False, False),
        (DESKTOP, True, True, False),
        ({}, True, False, False),
        ({**DESKTOP, "SSH_CONNECTION": "a 1 b 2"}, True, False, False),
    ],
)
def test_a_browser_is_opened_only_where_somebody_sees_it(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    on_terminal: bool,
    remote: bool,
    wanted: bool,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert browser.is_wanted(on_terminal=on_terminal, remote=remote) is wanted


def test_the_browser_opens_once_the_server_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    answers = iter([False, False, True])

    class Graphical(webbrowser.BackgroundBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            opened.append(url)
            return True

    monkeypatch.setattr(webbrowser, "get", lambda: Graphical("none"))
    browser.open_when_ready("http://127.0.0.1:1/", lambda: next(answers)).join(5)
    assert opened == ["http://127.0.0.1:1/"]
    assert next(answers, None) is None


def test_without_a_graphical_browser_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def none() -> webbrowser.BaseBrowser:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.delenv("BROWSER", raising=False)
    for get in (none, lambda: webbrowser.GenericBrowser(["echo", "%s"])):
        monkeypatch.setattr(webbrowser, "get", get)
        browser.open_when_ready("http://127.0.0.1:1/", lambda: True).join(5)
    assert capfd.readouterr() == ("", "")


def visit_and_interrupt(port: int, answers: list[bytes]) -> None:
    """Request until there is a response, then press Ctrl-C."""
    until = time.monotonic() + 60
    while not answers and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/runs", timeout=20) as answer:
                answers.append(answer.read())
        except OSError:
            time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
