"""Routes for duplicates: groups to go through, and lists of the copies that are kept or redundant."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from imsvd.datasets.sources import printable
from imsvd.explorer.answers import PATHS, answer, takes
from imsvd.explorer.background import Background, Working
from imsvd.explorer.explorer import Explorer
from imsvd.explorer.index_routes import listing, posted
from imsvd.explorer.opened_index import MOST_SAVED, OpenedIndex
from imsvd.index import Copy, Duplicates

SHOWN_COPIES = 60
"""Most copies of one group that are shown."""

Offset = Annotated[int, Query(ge=0)]
Count = Annotated[int, Query(ge=1, le=50)]
Within = Annotated[int | None, Query(ge=0, le=64)]
Cosine = Annotated[float | None, Query(ge=-1, le=1, allow_inf_nan=False)]


class Marks(BaseModel):
    """Which copies to list. `marks` has the images to keep of each group that the user has changed."""

    model_config = ConfigDict(extra="forbid")

    what: Literal["kept", "redundant"]
    first: str = ""
    second: str = ""
    within: int | None = Field(None, ge=0, le=64)
    cosine: float | None = Field(None, ge=-1, le=1, allow_inf_nan=False)
    marks: dict[int, set[int]] = {}


def duplicate_routes(explorer: Explorer, background: Background) -> APIRouter:
    """Routes for duplicates within an index, or between two parts of it."""
    router = APIRouter(prefix="/api/indexes/{x}/duplicates")

    def found(
        x: int, first: str, second: str, within: int | None, cosine: float | None
    ) -> Duplicates | Working:
        if bool(first) != bool(second):
            raise HTTPException(400, "Name two splits or queries, or none.")
        index = explorer.index(x).index
        between = (first, second) if first else None
        result: Duplicates | Working = background.result(
            ("duplicates", x, between, within, cosine),
            lambda progress: index.duplicates(
                between=between, within=within, cosine=cosine, progress=progress
            ),
        )
        return result

    @router.get("")
    def groups(
        x: int,
        first: str = "",
        second: str = "",
        within: Within = None,
        cosine: Cosine = None,
        offset: Offset = 0,
        count: Count = 20,
    ) -> Response:
        result = found(x, first, second, within, cosine)
        if isinstance(result, Working):
            return answer(result.record())
        return answer(_record(explorer.index(x), result, offset, count))

    @router.post(
        "/list",
        response_class=Response,
        responses=PATHS,
        openapi_extra=takes("application/json", Marks.model_json_schema()),
    )
    async def paths(x: int, request: Request) -> Response:
        index = explorer.index(x)
        wanted = await posted(explorer, request, Marks)
        result = found(x, wanted.first, wanted.second, wanted.within, wanted.cosine)
        if isinstance(result, Working):
            raise HTTPException(409, "The duplicates are still being searched; try again.")
        images = _listed(result, wanted)
        if len(images) > MOST_SAVED:
            raise HTTPException(
                400,
                f"A list has at most {MOST_SAVED:,} paths, not {len(images):,}; "
                "use `imsvd duplicates --paths FILE.txt`.",
            )
        return listing(await run_in_threadpool(lambda: index.paths(images)))

    return router


def _record(index: OpenedIndex, found: Duplicates, offset: int, count: int) -> dict[str, Any]:
    return {
        "ready": True,
        "total": len(found.groups),
        "copies": sum(map(len, found.groups)),
        "distance": found.distance,
        "wanted_distance": found.wanted_distance,
        "cosine": found.cosine,
        "changed": found.changed,
        "groups": [
            {
                "group": offset + number,
                "size": len(group),
                "copies": [_copy(index, copy) for copy in group[:SHOWN_COPIES]],
            }
            for number, group in enumerate(found.groups[offset : offset + count])
        ],
    }


def _copy(index: OpenedIndex, copy: Copy) -> dict[str, Any]:
    return {
        "image": copy.position,
        "path": printable(copy.path),
        "keep": copy.keep,
        "kind": copy.kind,
        "likeness": copy.likeness,
        "bytes": copy.size,
        "side": copy.side,
        "state": index.index.image(copy.position).state(),
    }


def _listed(found: Duplicates, wanted: Marks) -> list[int]:
    for number, images in wanted.marks.items():
        known = found.groups[number] if 0 <= number < len(found.groups) else ()
        if not images <= {copy.position for copy in known}:
            raise HTTPException(422, f"marks: group {number} does not have these images.")
    listed = []
    for number, group in enumerate(found.groups):
        kept = wanted.marks.get(number, {copy.position for copy in group if copy.keep})
        listed += [
            copy.position for copy in group if (copy.position in kept) == (wanted.what == "kept")
        ]
    return listed
