"""Routes for indexes: searches, counts, completions, lists of paths and pictures."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from imsvd.explorer.answers import (
    PATHS,
    PICTURE,
    answer,
    caching,
    is_known,
    jpeg,
    require_size,
    takes,
)
from imsvd.explorer.completion import complete
from imsvd.explorer.explorer import Explorer
from imsvd.explorer.opened_index import MOST_RANKED, MOST_SAVED, Search
from imsvd.explorer.pictures import THUMBNAIL_SIZES
from imsvd.index.searching import vocabulary

Model = TypeVar("Model", bound=BaseModel)

MOST_EXAMPLES = 16
MOST_LIST_BYTES = 2 * 1024**2

Offset = Annotated[int, Query(ge=0, le=MOST_RANKED)]
Count = Annotated[int, Query(ge=1, le=200)]
Examples = Annotated[list[int], Query(max_length=MOST_EXAMPLES)]


class Wanted(BaseModel):
    """What to list: some images, or those that a search finds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    images: list[int] | None = Field(None, max_length=MOST_SAVED)
    query: str = ""
    like: list[int] = Field([], max_length=MOST_EXAMPLES)
    unlike: list[int] = Field([], max_length=MOST_EXAMPLES)


def search_routes(explorer: Explorer) -> APIRouter:
    """Routes for searches."""
    router = APIRouter(prefix="/api/indexes")

    @router.get("")
    def indexes() -> Response:
        listed = [index.overview(number) for number, index in enumerate(explorer.indexes)]
        return answer({"indexes": listed})

    @router.get("/{x}/search")
    def search(
        x: int,
        q: str = "",
        like: Examples = [],  # noqa: B006 - FastAPI copies it
        unlike: Examples = [],  # noqa: B006
        offset: Offset = 0,
        count: Count = 60,
    ) -> Response:
        wanted = Search(q, tuple(like), tuple(unlike))
        return answer(explorer.index(x).search(wanted, offset, count))

    @router.get("/{x}/facets")
    def facets(x: int, q: str = "", offset: Offset = 0, count: Count = 12) -> Response:
        return answer(explorer.index(x).facets(q, offset, count))

    @router.get("/{x}/completions")
    def completions(x: int, start: Annotated[str, Query(max_length=100)] = "") -> Response:
        known = vocabulary(explorer.index(x).index)
        return answer({"completions": complete(start, known)})

    @router.post(
        "/{x}/list",
        response_class=Response,
        responses=PATHS,
        openapi_extra=takes("application/json", Wanted.model_json_schema()),
    )
    async def paths(x: int, request: Request) -> Response:
        index = explorer.index(x)
        wanted = await posted(explorer, request, Wanted)

        def make() -> bytes:
            search = Search(wanted.query, tuple(wanted.like), tuple(wanted.unlike))
            return index.paths(index.found(search) if wanted.images is None else wanted.images)

        return listing(await run_in_threadpool(make))

    @router.get("/{x}/images/{i}/thumbnail", response_class=Response, responses=PICTURE)
    def thumbnail(request: Request, x: int, i: int, size: int = 128) -> Response:
        require_size(size, THUMBNAIL_SIZES)
        headers = caching(request, explorer.index(x).key, f"{i}-{size}")
        if is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return jpeg(explorer.index(x).thumbnail(i, size), headers)

    return router


async def posted(
    explorer: Explorer,
    request: Request,
    kind: type[Model],
    most: int = MOST_LIST_BYTES,
    too_large: str = "The request is too large; select fewer images.",
) -> Model:
    """Read a JSON object of up to `most` bytes."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Send JSON, as application/json.")
    async with explorer.bodies.read(request, most, too_large) as received:
        content = received
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "The request"
        raise HTTPException(422, f"{place}: {problem['msg'].lower()}.") from error


def listing(content: bytes) -> Response:
    """Respond with a list of paths to be saved."""
    headers = {"Content-Disposition": 'attachment; filename="images.txt"'}
    return Response(content, media_type="text/plain; charset=utf-8", headers=headers)
