"""Routes for the names and stars of variables and units, which are kept in the run folder."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from imsvd.explorer.answers import answer, takes
from imsvd.explorer.explorer import Explorer
from imsvd.explorer.index_routes import posted
from imsvd.index.names import Notes, note, read_notes

MOST_BYTES = 4096
_TOO_LARGE = "The request is too large; choose a shorter name."


class Change(BaseModel):
    """A new name or star; None keeps what there is, and an empty name removes it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    place: str = Field(max_length=16)
    name: str | None = Field(None, max_length=1000)
    starred: bool | None = None


def note_routes(explorer: Explorer) -> APIRouter:
    """Routes for notes."""
    router = APIRouter(prefix="/api/runs/{r}/notes")

    @router.get("")
    def notes(r: int) -> Response:
        return answer(_record(read_notes(explorer.run(r).run.path)))

    @router.post("", openapi_extra=takes("application/json", Change.model_json_schema()))
    async def change(r: int, request: Request) -> Response:
        run = explorer.run(r)
        wanted = await posted(explorer, request, Change, MOST_BYTES, _TOO_LARGE)
        if wanted.name is None and wanted.starred is None:
            raise HTTPException(422, "Send a name or a star.")

        def write() -> Notes:
            found = note(
                run.run.path, wanted.place, run.units, name=wanted.name, starred=wanted.starred
            )
            for index in explorer.indexes:
                index.reread_names()
            return found

        return answer(_record(await run_in_threadpool(write)))

    return router


def _record(notes: Notes) -> dict[str, Any]:
    return {"names": notes.names, "starred": list(notes.starred)}
