"""Access control by host, token and origin; names in requests never become paths."""

import http.client
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from imsvd.explorer import ExplainedRun, create_app
from imsvd.explorer.guard import HEADERS
from tests.explorer.conftest import BASE
from tests.explorer.served import served

TOKEN = "a-token-of-some-length"

PLACES = (
    "/{}",
    "/static/{}",
    "/api/{}",
    "/api/runs/{}",
    "/api/runs/{}/variables",
    "/api/runs/0/variables/{}",
    "/api/runs/0/units/{}/0",
    "/api/runs/0/joint/0/{}",
    "/api/runs/0/images/{}",
    "/api/runs/0/images/{}/thumbnail",
    "/api/runs/0/images/0/map/{}/0",
    "/api/runs/0/uploads/{}",
    "/api/uploads/{}/thumbnail",
)
NAMES = (
    "../../../../../../etc/passwd",
    "..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "%252e%252e%252f%252e%252e%252fetc%252fpasswd",
    "..%5c..%5c..%5cetc%5cpasswd",
    "....//....//....//etc/passwd",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "file:%2f%2f%2fetc%2fpasswd",
    "%c0%ae%c0%ae%c0%afetc%c0%afpasswd",
    "%ef%bc%8e%ef%bc%8e%ef%bc%8fetc",
    "etc%2fpasswd%00.js",
    "app.js%00",
    "../secret.txt",
    "..%2fexplained_run.py",
    "__init__.py",
    "config.yaml",
    "0%2f..%2f..%2fconfig.yaml",
    "-1",
    "1e3",
    "0x0",
    "99999999999999999999999999",
    "NaN",
    "~root",
)


class Opened:
    """Records the files that this process opens."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.watching = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watching and event == "open":
            self.paths.append(str(arguments[0]))


@pytest.fixture(scope="module")
def port(explained: Path) -> Iterator[int]:
    with served(create_app([explained])) as found:
        yield found


def get(port: int, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_no_name_in_a_request_becomes_a_path(port: int, explained: Path) -> None:
    (explained.parent / "secret.txt").write_text("a secret")
    paths = [place.format(name) for place in PLACES for name in NAMES]
    assert len(paths) > 300
    assert get(port, "/api/runs/0/joint/0/0")[0] == 200  # reads its file once
    opened = Opened()
    opened.watching = True
    answers = [get(port, path) for path in paths]
    opened.watching = False
    wrong = [
        (path, status)
        for path, (status, _) in zip(paths, answers, strict=True)
        if status not in (400, 404, 422)
    ]
    assert wrong == []
    assert all(content.startswith(b'{"error"') for _, content in answers)
    forbidden = ("/etc/passwd", str(explained.parent), "explained_run.py", "secret")
    assert [path for path in opened.paths if any(part in path for part in forbidden)] == []
    # The recorder does see what is opened.
    opened.watching = True
    assert get(port, "/static/index.html")[0] == 200
    opened.watching = False
    assert any(path.endswith("static/index.html") for path in opened.paths)


def test_the_server_survives_malformed_requests(port: int) -> None:
    for request in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"POST /api/runs/0/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(request)
            assert connection.recv(64).split(b" ")[1] == b"400", request
    assert get(port, "/api/runs")[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost:8000", 200),
        ("LOCALHOST:8000", 200),
        ("[::1]:8000", 200),
        ("127.0.0.1", 400),
        ("127.0.0.1:8001", 400),
        ("evil.example", 400),
        ("evil.example:8000", 400),
        ("127.0.0.1.evil.example:8000", 400),
        ("evil.example:8000@127.0.0.1:8000", 400),
        ("localhost:8000/evil", 400),
        ("10.0.0.1:8000", 400),
        ("", 400),
    ],
)
def test_by_default_only_loopback_hosts_are_accepted(
    opened: ExplainedRun, host: str, status: int
) -> None:
    client = TestClient(create_app([opened], port=8000), base_url=BASE)
    assert client.get("/api/runs", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("served_at", "host", "status"),
    [
        ("192.168.0.7", "192.168.0.7:8000", 200),
        ("192.168.0.7", "192.168.0.8:8000", 400),
        ("0.0.0.0", "192.168.0.7:8000", 200),
        ("0.0.0.0", f"{socket.gethostname()}:8000", 200),
        ("0.0.0.0", "evil.example:8000", 400),
        ("::", "[fe80::1]:8000", 200),
    ],
)
def test_a_configured_host_is_accepted(
    opened: ExplainedRun, served_at: str, host: str, status: int
) -> None:
    client = TestClient(create_app([opened], host=served_at, port=8000), base_url=BASE)
    assert client.get("/api/runs", headers={"Host": host}).status_code == status


def test_every_address_requires_the_token(opened: ExplainedRun) -> None:
    client = TestClient(create_app([opened], token=TOKEN), base_url=BASE)
    for path in ("/", "/static/app.js", "/api/runs", "/api/runs/0/images/0/thumbnail", "/none"):
        refused = client.get(path)
        assert refused.status_code == 401
        assert "token" in refused.json()["error"]
    assert client.post("/api/runs/0/uploads", content=b"x").status_code == 401
    for wrong in (TOKEN[:-1], TOKEN + "a", "", "ä"):
        assert client.get("/api/runs", params={"token": wrong}).status_code == 401
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/runs", headers=bearer).status_code == 200
    assert client.get("/api/runs").status_code == 401


def test_a_token_in_the_address_becomes_a_cookie(opened: ExplainedRun) -> None:
    client = TestClient(create_app([opened], token=TOKEN), base_url=BASE)
    first = client.get("/", params={"token": TOKEN})
    assert first.status_code == 200
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/api/runs").status_code == 200
    client.cookies.clear()
    assert client.get("/api/runs").status_code == 401
    assert "set-cookie" not in client.get("/", params={"token": "wrong"}).headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Origin": "http://127.0.0.1"}, 400),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 400),
    ],
)
def test_only_the_explorers_page_may_upload(
    client: TestClient, headers: dict[str, str], status: int
) -> None:
    """Status 400 means that the upload was accepted and found to be no image."""
    kind = {"Content-Type": "image/png"}
    answer = client.post("/api/runs/0/uploads", content=b"no image", headers=kind | headers)
    assert answer.status_code == status


def test_every_response_has_the_protective_headers(client: TestClient) -> None:
    for path in ("/", "/static/style.css", "/api/runs", "/api/runs/0/images/0/thumbnail", "/none"):
        answer = client.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    refused = client.get("/", headers={"Host": "evil.example"})
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in HEADERS["Content-Security-Policy"]


def test_the_server_survives_a_defect_and_reports_it_in_a_sentence(
    opened: ExplainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("internal detail")

    client = TestClient(create_app([opened]), base_url=BASE)
    with monkeypatch.context() as patch:
        patch.setattr("imsvd.explorer.records.variables", fail)
        answer = client.get("/api/runs/0/variables")
    assert answer.status_code == 500
    assert list(answer.json()) == ["error"]
    assert "internal" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/api/runs/0/variables").status_code == 200


def test_the_page_and_its_files_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == client.get("/static/index.html").content
    known = client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")
    assert client.post("/").status_code == 405
    assert client.get("/openapi.json").status_code == client.get("/docs").status_code == 404
