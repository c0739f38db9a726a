"""Fuzzed requests, slow clients, hostile files, guessed tokens: the explorer answers or refuses, and goes on."""

import asyncio
import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from imsvd.explorer import ExplainedRun, bodies, connections, create_app, serving
from imsvd.explorer.guard import COOKIE
from imsvd.explorer.guesses import MOST_AT_ONCE, SECONDS_EACH, Guesses
from imsvd.index import Index
from tests.explorer.conftest import BASE
from tests.explorer.fuzzing import fuzz
from tests.explorer.hostile import SECRET, damaged, small_files
from tests.explorer.served import served

TOKEN = "a-token-of-some-length"


def test_the_api_keeps_its_description(opened: ExplainedRun, planted: Index) -> None:
    """Schemathesis makes requests from the description, right and wrong ones; see `fuzz`."""
    with served(create_app([opened, planted.path])) as port:
        found = fuzz(f"http://127.0.0.1:{port}", examples=2)
    assert found.problems == []
    assert found.operations > 20
    assert found.requests > 2 * found.operations


@pytest.fixture(scope="module")
def port(explained: Path) -> Iterator[int]:
    with served(create_app([explained])) as found:
        yield found


def test_slow_clients_are_cut_off_and_others_served(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(bodies, "GRACE_SECONDS", 0.5)
    upload = b"POST /api/runs/0/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
    begun = {
        "nothing": b"",
        "head": b"GET / HTTP/1.1\r\nHost: ",
        "body": upload + b"Content-Length: 99\r\n\r\n",
        "refused body": upload.replace(b"image/png", b"x") + b"Content-Length: 99\r\n\r\n",
    }
    opened = {name: socket.create_connection(("127.0.0.1", port), 10) for name in begun}
    for name, start in begun.items():
        opened[name].sendall(start)
    until = time.monotonic() + 20
    received = dict.fromkeys(begun, b"")
    while opened and time.monotonic() < until:
        time.sleep(0.1)
        for name in list(opened):
            try:
                opened[name].sendall(b"x")
                opened[name].settimeout(0.01)
                received[name] += (part := opened[name].recv(999))
                closed = not part
            except TimeoutError:
                closed = False
            except OSError:
                closed = True
            if closed:
                opened.pop(name).close()
        assert get(port, "/api/runs") == 200
    assert opened == {}
    assert received["nothing"] == received["head"] == b""
    assert received["body"].startswith(b"HTTP/1.1 408")
    assert received["refused body"].startswith(b"HTTP/1.1 415")


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


class FakeTransport:
    def __init__(self, unread: int = 0) -> None:
        self.unread = unread
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True


class FakeConnection:
    """A connection that waits for a request, or has `unread` bytes of a response to read."""

    def __init__(self, unread: int = 0) -> None:
        self.transport = FakeTransport(unread)
        self.cycle: object = None


@pytest.fixture
def server(opened: ExplainedRun) -> connections.Server:
    return serving.server(create_app([opened]))


def held(server: connections.Server, *made: FakeConnection) -> None:
    server.server_state.connections = set(made)  # type: ignore[arg-type]


def test_a_response_may_be_read_slowly_but_not_endlessly(server: connections.Server) -> None:
    patient, stuck = FakeConnection(10 * connections.PROGRESS), FakeConnection(1)
    held(server, patient, stuck)
    for second in range(0, 100, 20):
        server.sweep(float(second))
        patient.transport.unread -= connections.PROGRESS
    assert not patient.transport.aborted
    assert stuck.transport.aborted
    server.sweep(99)
    patient.transport.unread = 0  # from now on, the next request must come
    server.sweep(99 + connections.REQUEST_SECONDS)
    assert not patient.transport.aborted
    server.sweep(100 + connections.REQUEST_SECONDS)
    assert patient.transport.aborted


def test_of_too_many_connections_the_longest_idle_go(
    server: connections.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_most", 2)
    old, new, newest = (FakeConnection() for _ in range(3))
    working = FakeConnection()
    working.cycle = type("Cycle", (), {"response_complete": False})
    held(server, working, old)
    server.sweep(0)
    held(server, working, old, new)
    server.sweep(1)
    assert old.transport.aborted
    held(server, working, new, newest)
    server.sweep(2)
    assert [one.transport.aborted for one in (working, new, newest)] == [False, True, False]


def test_responses_that_nobody_reads_stay_within_the_limit(server: connections.Server) -> None:
    large = [FakeConnection(connections.MOST_UNREAD // 2) for _ in range(3)]
    small = FakeConnection(9)
    held(server, small, *large)
    server.sweep(0)
    assert sum(one.transport.aborted for one in large) == 2
    assert not small.transport.aborted


def test_bodies_share_a_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {"Content-Type": "image/png"}
    with monkeypatch.context() as patch:
        patch.setattr(bodies, "MOST_BYTES", 10)
        full = client.post("/api/runs/0/uploads", content=bytes(11), headers=kind)
        fits = client.post("/api/runs/0/uploads", content=bytes(10), headers=kind)
        patch.setattr(bodies, "MOST_AT_ONCE", 0)
        busy = client.post("/api/runs/0/uploads", content=b"x", headers=kind)
    assert (full.status_code, fits.status_code, busy.status_code) == (503, 400, 503)
    assert "try again" in full.json()["error"]
    assert client.post("/api/runs/0/uploads", content=bytes(11), headers=kind).status_code == 400


def test_a_client_that_leaves_is_no_defect(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as leaving:
        leaving.sendall(
            b"POST /api/runs/0/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: image/png\r\nContent-Length: 99\r\n\r\nx"
        )
        time.sleep(0.1)
    time.sleep(0.2)
    assert get(port, "/api/runs") == 200
    assert caplog.records == []


def test_hostile_files_are_refused_or_stripped(client: TestClient) -> None:
    kind = {"Content-Type": "image/jpeg"}
    for name, (content, statuses) in small_files().items():
        answer = client.post("/api/runs/0/uploads", content=content, headers=kind)
        assert answer.status_code in statuses, (name, answer.text)
        if answer.status_code == 200:
            shown = client.get(f"/api/uploads/{answer.json()['upload']}/thumbnail")
            assert shown.headers["content-type"] == "image/jpeg"
            assert shown.content.startswith(b"\xff\xd8\xff"), name
            assert SECRET not in shown.content, name
            assert b"PK\x03\x04" not in shown.content, name


def test_damaged_files_never_break_the_server(client: TestClient) -> None:
    kind = {"Content-Type": "application/octet-stream"}
    statuses = {
        client.post("/api/runs/0/uploads", content=content, headers=kind).status_code
        for content in damaged(120)
    }
    assert statuses <= {200, 400, 413}
    assert 200 in statuses
    assert 400 in statuses


def test_wrong_tokens_are_limited_by_address_and_the_owner_stays_in(opened: ExplainedRun) -> None:
    app = create_app([opened], token=TOKEN)
    owner, other = TestClient(app, BASE), TestClient(app, BASE, client=("10.0.0.2", 1))
    assert owner.get("/", params={"token": TOKEN}).status_code == 200
    cookie = owner.cookies[COOKIE]
    assert TOKEN not in cookie
    guesser = TestClient(app, BASE)
    guesses = [
        guesser.get("/api/runs", headers={"Authorization": f"Bearer guess-{number}"}).status_code
        for number in range(MOST_AT_ONCE + 5)
    ]
    assert guesses == [401] * MOST_AT_ONCE + [429] * 5
    # Right or wrong, the next token is not even looked at.
    right = guesser.get("/api/runs", params={"token": TOKEN})
    assert right.status_code == 429
    assert 0 < int(right.headers["retry-after"]) <= SECONDS_EACH
    assert "set-cookie" not in right.headers
    assert owner.get("/api/runs").status_code == 200
    assert other.get("/api/runs", params={"token": TOKEN}).status_code == 200
    # Neither a missing token nor an old cookie is a guess.
    other.cookies.clear()
    other.cookies.set(COOKIE, "of-an-earlier-start")
    assert {other.get("/api/runs").status_code for _ in range(2 * MOST_AT_ONCE)} == {401}
    assert other.get("/api/runs", params={"token": TOKEN}).status_code == 200


def test_guesses_are_forgotten_one_by_one_and_counted_by_network() -> None:
    now = 0.0
    guesses = Guesses(lambda: now)
    for number in range(MOST_AT_ONCE):
        assert guesses.wait("2001:db8::1") == 0
        guesses.add(f"2001:db8::{number}")
    assert guesses.wait("2001:db8::ffff") == SECONDS_EACH
    assert guesses.wait("2001:db8:0:1::1") == guesses.wait("10.0.0.1") == guesses.wait("") == 0
    now = SECONDS_EACH
    assert guesses.wait("2001:db8::1") == 0
    guesses.add("2001:db8::1")
    assert guesses.wait("2001:db8::1") == SECONDS_EACH
    now = 1000.0
    for _ in range(MOST_AT_ONCE):
        assert guesses.wait("2001:db8::1") == 0
        guesses.add("2001:db8::1")
    assert guesses.wait("2001:db8::1") > 0
    for number in range(MOST_AT_ONCE):
        guesses.add("::ffff:10.0.0.9" if number % 2 else "10.0.0.9")
    assert guesses.wait("10.0.0.9") > 0


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ("/api/runs", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ("/api/runs", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ("/api/runs", {"Sec-Fetch-Site": "same-site"}, 403),
        ("/api/runs", {"Origin": "http://evil.example"}, 403),
        ("/", {"Origin": "http://evil.example", "Sec-Fetch-Mode": "navigate"}, 403),
        ("/api/runs", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("/api/runs", {"Sec-Fetch-Site": "none"}, 200),
        ("/static/app.js", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    ],
)
def test_other_web_sites_cannot_make_the_browser_ask(
    client: TestClient, path: str, headers: dict[str, str], status: int
) -> None:
    assert client.get(path, headers=headers).status_code == status


def test_nobody_can_claim_another_address(opened: ExplainedRun) -> None:
    with served(create_app([opened], token=TOKEN)) as port:
        statuses = []
        for number in range(MOST_AT_ONCE + 1):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            claimed = {"X-Forwarded-For": f"10.0.0.{number}", "Authorization": "Bearer wrong"}
            connection.request("GET", "/api/runs", headers=claimed)
            statuses.append(connection.getresponse().status)
            connection.close()
    assert statuses == [401] * MOST_AT_ONCE + [429]


def test_five_hundred_requests_at_once_are_answered(port: int) -> None:
    paths = ("/", "/api/runs", "/api/runs/0/variables", "/api/runs/0/images/{}/thumbnail")

    async def one(number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = paths[number % len(paths)].format(number % 128)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read()
        writer.close()
        return answer[:12]

    async def all_of_them() -> list[bytes]:
        return await asyncio.gather(*(one(number) for number in range(500)))

    assert set(asyncio.run(all_of_them())) == {b"HTTP/1.1 200"}
