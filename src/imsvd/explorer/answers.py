"""Responses: JSON, pictures and how long browsers keep them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import HTTPException, Request
from pydantic import BaseModel
from starlette.responses import Response

_YEAR = 365 * 24 * 3600


class Problem(BaseModel):
    """An error, in one sentence."""

    error: str


# For the description of the API (OpenAPI).
PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": {"model": Problem}, 503: {"model": Problem}}
PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {}}, "description": "A JPEG."},
    304: {"description": "The browser has it."},
}
PATHS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {}}, "description": "Paths, one in each line."}
}


def takes(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Describe the body of a request that the route itself reads."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


def answer(record: dict[str, Any]) -> Response:
    """Respond with JSON."""
    content = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content, media_type="application/json")


def jpeg(content: bytes, headers: dict[str, str]) -> Response:
    """Respond with a picture."""
    return Response(content, media_type="image/jpeg", headers=headers)


def require_size(size: int, sizes: tuple[int, ...]) -> None:
    """Refuse a size of pictures that is not offered."""
    if size not in sizes:
        raise HTTPException(
            422, f"size={size} is not available; choose {', '.join(map(str, sizes))}."
        )


def is_known(request: Request, etag: str) -> bool:
    """Return whether the browser has what an ETag stands for."""
    return etag in (part.strip() for part in request.headers.get("if-none-match", "").split(","))


def caching(request: Request, key: str, name: str) -> dict[str, str]:
    """Headers for a picture, which browsers may keep if its address names the explanation."""
    named = request.query_params.get("v") == key
    lasting = f"private, max-age={_YEAR}, immutable" if named else "no-cache"
    return {"ETag": f'"{key}-{name}"', "Cache-Control": lasting}
