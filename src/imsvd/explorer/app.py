"""The explorer as a web application: routes, page files, and a sentence for every error."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.responses import JSONResponse, Response

from imsvd.errors import InputError
from imsvd.explorer import comparison, records
from imsvd.explorer.answers import (
    PICTURE,
    PROBLEMS,
    answer,
    caching,
    is_known,
    jpeg,
    require_size,
    takes,
)
from imsvd.explorer.background import Background
from imsvd.explorer.drift_routes import drift_routes
from imsvd.explorer.duplicate_routes import duplicate_routes
from imsvd.explorer.explained_run import ExplainedRun, NotFoundError
from imsvd.explorer.explorer import BusyError, Explorer
from imsvd.explorer.guard import Guard
from imsvd.explorer.index_routes import search_routes
from imsvd.explorer.note_routes import note_routes
from imsvd.explorer.opened_index import OpenedIndex
from imsvd.explorer.pictures import MAX_FILE_BYTES, THUMBNAIL_SIZES, UploadError, as_jpeg
from imsvd.explorer.places import Places, open_places
from imsvd.index import QueryError

STATIC = pathlib.Path(__file__).parent / "static"
INDEX = "index.html"
MAP_SIZES = (128, 256)
THREADS = 8

Offset = Annotated[int, Query(ge=0)]
Count = Annotated[int, Query(ge=1, le=200)]
NeighborCount = Annotated[int, Query(ge=1, le=100)]
UploadName = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]

_TOO_LARGE = f"The file is larger than {MAX_FILE_BYTES // 1024**2} MB; scale it down first."
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def create_app(
    places: Sequence[ExplainedRun | OpenedIndex | str | pathlib.Path] | Places,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
) -> FastAPI:
    """Return the application for explained runs and indexes, to be served by uvicorn.

    Args:
        places: run folders, indexes and folders that hold some, or what `open_places` returns for them.
        host: address at which the application is served.
        port: port that requests must name; None accepts any.
        token: access token that requests must present; None requires none.
    """
    found = places if isinstance(places, Places) else open_places(places)
    explorer = Explorer(
        [place for place in found.opened if isinstance(place, ExplainedRun)],
        [place for place in found.opened if isinstance(place, OpenedIndex)],
    )

    background = Background()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Each thread holds the memory of one request; more threads than this would gain no time.
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        explorer.encoders.close()
        background.close()

    app = FastAPI(
        title="imsvd explorer",
        # No built-in documentation pages: they load scripts from other servers.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    app.include_router(_page_routes(), include_in_schema=False)
    app.include_router(_place_routes(found))
    for routes in (_run_routes, _image_routes, _upload_routes, note_routes, search_routes):
        app.include_router(routes(explorer))
    for long_routes in (duplicate_routes, drift_routes):
        app.include_router(long_routes(explorer, background))
    app.add_exception_handler(AnyHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (NotFoundError, UploadError, BusyError, InputError):
        app.add_exception_handler(kind, _sentence)
    app.add_exception_handler(QueryError, _mistake)
    app.add_middleware(Guard, host=host, port=port, token=token)
    return app


def _page_routes() -> APIRouter:
    router = APIRouter()
    # Listed once, so that no name in a request becomes a path.
    files = {path.name: path for path in sorted(STATIC.iterdir()) if path.suffix in _CONTENT_TYPES}

    @router.get("/")
    def page(request: Request) -> Response:
        return static(INDEX, request)

    @router.get("/static/{name}")
    def static(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404, "There is no such file.")
        content = files[name].read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        if is_known(request, etag):
            return Response(status_code=304, headers={"ETag": etag})
        headers = {"Content-Type": _CONTENT_TYPES[files[name].suffix], "ETag": etag}
        return Response(content, headers=headers)

    return router


def _place_routes(found: Places) -> APIRouter:
    router = APIRouter(prefix="/api")

    @router.get("/places")
    def places() -> Response:
        return answer(found.record())

    return router


def _run_routes(explorer: Explorer) -> APIRouter:
    """Routes for runs, their variables and their units."""
    router = APIRouter(prefix="/api")

    @router.get("/runs")
    def runs() -> Response:
        return answer(explorer.overview())

    @router.get("/runs/{r}/variables")
    def all_variables(r: int) -> Response:
        return answer(records.variables(explorer.run(r)))

    @router.get("/runs/{r}/variables/{m}")
    def one_variable(r: int, m: int) -> Response:
        return answer(records.variable(explorer.run(r), m))

    @router.get("/runs/{r}/units/{m}/{d}")
    def unit(r: int, m: int, d: int, offset: Offset = 0, count: Count = 48) -> Response:
        return answer(records.unit(explorer.run(r), m, d, offset, count))

    @router.get("/runs/{r}/mutual-information")
    def mutual_information(r: int) -> Response:
        return answer(records.mutual_information(explorer.run(r)))

    @router.get("/runs/{r}/joint/{m}/{n}")
    def joint(r: int, m: int, n: int) -> Response:
        return answer(records.joint(explorer.run(r), m, n))

    @router.get("/runs/{r}/training")
    def training(r: int) -> Response:
        return answer(comparison.training(explorer.run(r)))

    @router.get("/compare")
    def compare(first: int, second: int) -> Response:
        return answer(comparison.compare(explorer.run(first), explorer.run(second)))

    return router


def _image_routes(explorer: Explorer) -> APIRouter:
    """Routes for the explained images."""
    router = APIRouter(prefix="/api/runs/{r}/images")

    @router.get("")
    def listing(
        r: int, offset: Offset = 0, count: Count = 60, label: str | None = None
    ) -> Response:
        return answer(records.image_list(explorer.run(r), offset, count, label))

    @router.get("/{i}")
    def image(r: int, i: int) -> Response:
        return answer(records.image(explorer.run(r), i))

    @router.get("/{i}/neighbors")
    async def neighbors(
        r: int, i: int, by: records.By = "code", count: NeighborCount = 12
    ) -> Response:
        return answer(await explorer.neighbors(r, i, by, count))

    @router.get("/{i}/thumbnail", response_class=Response, responses=PICTURE)
    def thumbnail(request: Request, r: int, i: int, size: int = 128) -> Response:
        require_size(size, THUMBNAIL_SIZES)
        headers = caching(request, explorer.run(r).key, f"{i}-{size}")
        if is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return jpeg(explorer.thumbnail(r, i, size), headers)

    @router.get("/{i}/map/{m}/{d}", response_class=Response, responses=PICTURE)
    async def unit_map(
        request: Request, r: int, i: int, m: int, d: int, size: int = 256
    ) -> Response:
        require_size(size, MAP_SIZES)
        headers = caching(request, explorer.run(r).key, f"{i}-{m}-{d}-{size}")
        if is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return jpeg(await explorer.map(r, i, m, d, size), headers)

    return router


def _upload_routes(explorer: Explorer) -> APIRouter:
    """Routes for images uploaded by the user."""
    router = APIRouter(prefix="/api")

    file = {"type": "string", "format": "binary"}

    @router.post("/runs/{r}/uploads", openapi_extra=takes("application/octet-stream", file))
    async def add(r: int, request: Request) -> Response:
        explorer.run(r)
        _require_image(request)
        async with explorer.bodies.read(request, MAX_FILE_BYTES, _TOO_LARGE) as content:
            name = await explorer.add_upload(r, content)
        return answer(await explorer.upload(r, name, "code", 12))

    @router.get("/runs/{r}/uploads/{name}")
    async def again(
        r: int, name: UploadName, by: records.By = "code", count: NeighborCount = 12
    ) -> Response:
        return answer(await explorer.upload(r, name, by, count))

    @router.get("/uploads/{name}/thumbnail", response_class=Response, responses=PICTURE)
    async def thumbnail(name: UploadName, size: int = 256, run: int = 0) -> Response:
        require_size(size, THUMBNAIL_SIZES)
        square = (await explorer.prepared(run, name)).square
        content = await run_in_threadpool(lambda: as_jpeg(square.resize((size, size))))
        return jpeg(content, {"Cache-Control": "no-store"})

    @router.get("/uploads/{name}/map/{r}/{m}/{d}", response_class=Response, responses=PICTURE)
    async def unit_map(name: UploadName, r: int, m: int, d: int, size: int = 256) -> Response:
        require_size(size, MAP_SIZES)
        content = await explorer.upload_map(name, r, m, d, size)
        return jpeg(content, {"Cache-Control": "no-store"})

    return router


def _require_image(request: Request) -> None:
    """Refuse an upload that does not claim to be an image, or hides how large it is."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("image/") and kind != "application/octet-stream":
        raise HTTPException(
            415, "Send the image as the request body, as image/… or application/octet-stream."
        )
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "The request has no valid Content-Length.")


def _sentence(_: Request, error: Exception) -> JSONResponse:
    status = {NotFoundError: 404, BusyError: 503, UploadError: 400}.get(type(error), 409)
    if isinstance(error, UploadError) and error.too_large:
        status = 413
    return JSONResponse({"error": str(error)}, status)


def _mistake(_: Request, error: Exception) -> JSONResponse:
    """Say where a query stops making sense."""
    assert isinstance(error, QueryError)
    where = {"position": error.position, "pointed": error.pointed()}
    return JSONResponse({"error": str(error), **where}, 400)


def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AnyHTTPException)
    is_sentence = error.detail.endswith(".")  # and not one of Starlette's reason phrases
    sentence = error.detail if is_sentence else f"{error.detail.capitalize()}."
    return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    reason = str(problem["msg"])
    sentence = f"{problem['loc'][-1]}: {reason[0].lower()}{reason[1:]}."
    return JSONResponse({"error": sentence}, 422)
