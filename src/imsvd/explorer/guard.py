"""Access control: the Host header, the access token, and the page that a request comes from.

Checking the Host header keeps other web sites out (DNS rebinding): a site can make its own name
resolve to 127.0.0.1 and so read from this server, but the browser still sends that name.

Wrong tokens are limited by address. A browser that has presented the right one keeps a random cookie in its
place, which cannot be guessed and is never refused: guesses from its address do not lock it out.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import re
import secrets
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imsvd.explorer.guesses import Guesses

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
EVERYWHERE = frozenset({"0.0.0.0", "::"})
COOKIE = "imsvd_explorer"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

_HOST = re.compile(
    r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>\d{1,5}))?"
)
_logger = logging.getLogger(__name__)


class Guard:
    """Middleware that rejects unauthorized requests and adds protective headers to every response.

    For `host`, `port` and `token` see `create_app`; loopback names of the host are always accepted.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
    ) -> None:
        self.app = app
        self._host, self._port, self._token = host, port, token
        self._names = LOOPBACK_NAMES | {host.lower()} - EVERYWHERE
        if host in EVERYWHERE:
            self._names |= {name.lower() for name in (socket.gethostname(), socket.getfqdn())}
        # Browsers share cookies between ports, and two explorers may run on one machine.
        self._cookie = COOKIE if port is None else f"{COOKIE}_{port}"
        self._cookie_value = secrets.token_urlsafe(32)
        self._guesses = Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a WebSocket; the server refuses the handshake
        headers = Headers(scope=scope)
        guarded = _GuardedSend(send)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        if self._token is not None and _query_token(scope):  # which was right
            guarded.cookie = (
                f"{self._cookie}={self._cookie_value}; Path=/; HttpOnly; SameSite=Strict"
            )
        try:
            await self.app(scope, receive, guarded)
        except ClientDisconnect:
            pass  # nobody is left to answer
        except Exception:
            _logger.exception("%s %s failed", scope["method"], scope["path"])
            if guarded.has_started:
                raise
            await _error(500, "Internal error; see the terminal that runs `imsvd explore`.")(
                scope, receive, guarded
            )

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        if not self.accepts_host(headers.getlist("host")):
            return _error(400, "Unknown host name; open the address that `imsvd explore` printed.")
        if self._token is not None and not self._has_cookie(headers):
            refusal = self._token_refusal(scope, headers)
            if refusal is not None:
                return refusal
        if not _is_own_page(headers) and not _follows_link(scope, headers):
            return _error(403, "Requests are accepted only from the explorer's own page.")
        return None

    def accepts_host(self, values: list[str]) -> bool:
        """Return whether there is exactly one Host header and it names this server."""
        match = _HOST.fullmatch(values[0]) if len(values) == 1 else None
        if match is None:
            return False
        if self._port is not None and int(match["port"] or 80) != self._port:
            return False
        name = (match["six"] or match["name"]).lower()
        return name in self._names or (self._host in EVERYWHERE and ip_address(name) is not None)

    def _has_cookie(self, headers: Headers) -> bool:
        cookies: SimpleCookie = SimpleCookie()
        with contextlib.suppress(CookieError):
            cookies.load(headers.get("cookie", ""))
        return self._cookie in cookies and _are_equal(
            cookies[self._cookie].value, self._cookie_value
        )

    def _token_refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        assert self._token is not None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        candidate = bearer.strip() if scheme.lower() == "bearer" else _query_token(scope)
        if not candidate:
            return _error(
                401, "Access token required; open the full address that `imsvd explore` printed."
            )
        address = (scope.get("client") or ("", 0))[0]
        if seconds := self._guesses.wait(address):
            # Even the right token is refused, or else guessing could go on at full speed.
            refusal = _error(429, f"Too many wrong access tokens; try again in {seconds} seconds.")
            refusal.headers["Retry-After"] = str(seconds)
            return refusal
        if _are_equal(candidate, self._token):
            return None
        self._guesses.add(address)
        return _error(
            401, "Wrong access token; open the full address that `imsvd explore` printed."
        )


class _GuardedSend:
    """Adds the protective headers to a response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.cookie: str | None = None
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-cache")
            if self.cookie is not None:
                headers.append("Set-Cookie", self.cookie)
        await self._send(message)


def _are_equal(candidate: str, secret: str) -> bool:
    """Compare in constant time, so that timing reveals nothing about the secret."""
    return hmac.compare_digest(candidate.encode(), secret.encode())


def _error(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)


def _query_token(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1")).get("token", [""])[0]


def _is_own_page(headers: Headers) -> bool:
    """Return whether a request comes from the explorer's page, or from no web page at all."""
    origins = headers.getlist("origin")
    same = [f"http://{headers.get('host', '')}"]
    return (not origins or origins == same) and headers.get("sec-fetch-site", "none") in (
        "none",
        "same-origin",
    )


def _follows_link(scope: Scope, headers: Headers) -> bool:
    """Return whether a browser opens the page because of a link on another one."""
    return (
        scope["method"] == "GET"
        and scope["path"] == "/"
        and headers.get("sec-fetch-mode") == "navigate"
        and "origin" not in headers
    )


def ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; return None for anything else."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
