"""Bodies of requests: few at once, not too large, not too slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import HTTPException, Request

MOST_AT_ONCE = 64
MOST_BYTES = 64 * 1024**2
"""Bytes of all bodies together that are being received or used."""
GRACE_SECONDS = 10.0
BYTES_PER_SECOND = 16 * 1024
"""Slower bodies are refused once `GRACE_SECONDS` are used up."""


_BUSY = "Too many uploads arrive at the same time; try again in a moment."


class Bodies:
    """The bodies that are being received or used."""

    def __init__(self) -> None:
        self._open = 0
        self._bytes = 0

    @asynccontextmanager
    async def read(self, request: Request, most: int, too_large: str) -> AsyncIterator[bytes]:
        """Receive a body of up to `most` bytes; it counts as used until the context ends."""
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > most:
            raise HTTPException(413, too_large)
        if self._open >= MOST_AT_ONCE:
            raise HTTPException(503, _BUSY)
        content = bytearray()
        self._open += 1
        try:
            await self._receive(request, content, most, too_large)
            yield bytes(content)
        finally:
            self._open -= 1
            self._bytes -= len(content)

    async def _receive(
        self, request: Request, content: bytearray, most: int, too_large: str
    ) -> None:
        deadline = asyncio.get_running_loop().time() + GRACE_SECONDS
        try:
            async with asyncio.timeout_at(deadline) as limit:
                async for chunk in request.stream():
                    content += chunk
                    self._bytes += len(chunk)
                    if len(content) > most:
                        raise HTTPException(413, too_large)
                    if self._bytes > MOST_BYTES:
                        raise HTTPException(503, _BUSY)
                    limit.reschedule(deadline + len(content) / BYTES_PER_SECOND)
        except TimeoutError as error:
            raise HTTPException(408, "The request arrived too slowly; try again.") from error
