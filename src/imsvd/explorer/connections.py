"""A server whose connections cannot be held by slow clients.

uvicorn waits without limit for a request to arrive and for a response to be read. A few hundred clients
that send a byte now and then would keep everyone else out, and hold memory for responses nobody reads.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import uvicorn

MOST_CONNECTIONS = 1000
REQUEST_SECONDS = 10.0
"""Time to send the head of a request, counted from the end of the response before it."""
READING_SECONDS = 30.0
"""Time in which a client must read `PROGRESS` bytes of its response."""
PROGRESS = 64 * 1024
MOST_UNREAD = 256 * 1024**2
"""Bytes of responses, of all connections together, that wait to be read."""
_OPEN_FILES = 4096


@dataclass
class _Progress:
    """When a connection last got ahead, and the bytes that it had not read then."""

    asked: float
    read: float
    unread: int = 0


class Server(uvicorn.Server):
    """Closes connections that are too slow, too many, or have too much unread."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._progress: weakref.WeakKeyDictionary[Any, _Progress] = weakref.WeakKeyDictionary()
        self._most = min(MOST_CONNECTIONS, open_files() // 2)

    async def on_tick(self, counter: int) -> bool:
        """Close what has to be closed, ten times a second."""
        self.sweep(self.servers[0].get_loop().time())
        return await super().on_tick(counter)

    def sweep(self, now: float) -> None:
        """Close connections by their progress up to `now`."""
        connections = list(self.server_state.connections)
        for connection in connections:
            if self._is_late(connection, now):
                connection.transport.abort()
        idle = [one for one in connections if not _is_answering(one)]
        idle.sort(key=lambda one: self._progress[one].asked)
        for connection in idle[: max(0, len(connections) - self._most)]:
            connection.transport.abort()
        unread = sum(self._progress[one].unread for one in connections)
        for connection in sorted(connections, key=lambda one: -self._progress[one].unread):
            if unread <= MOST_UNREAD:
                break
            connection.transport.abort()
            unread -= self._progress[connection].unread

    def _is_late(self, connection: Any, now: float) -> bool:
        progress = self._progress.setdefault(connection, _Progress(now, now))
        unread = connection.transport.get_write_buffer_size()
        if unread == 0 or unread <= progress.unread - PROGRESS:
            progress.read, progress.unread = now, unread
        progress.unread = max(progress.unread, unread)
        if unread or _is_answering(connection):
            progress.asked = now
        return now - progress.asked > REQUEST_SECONDS or now - progress.read > READING_SECONDS


def _is_answering(connection: Any) -> bool:
    """Return whether a request has arrived that has no complete response yet."""
    return connection.cycle is not None and not connection.cycle.response_complete


def open_files() -> int:
    """Return how many files this process may open, after asking the system for enough."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ModuleNotFoundError:
        return 2 * MOST_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return _OPEN_FILES if soft == resource.RLIM_INFINITY else soft
