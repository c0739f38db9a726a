"""The addresses of the explorer and what is checked of each request before it is answered."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from imsvd.explorer import comparison, images, training_curves, variables
from imsvd.explorer.explorer import MAP_SIZES, Explorer
from imsvd.explorer.own_images import MAX_FILE_BYTES
from imsvd.explorer.page_files import INDEX, PageFile
from imsvd.explorer.pictures import as_jpeg
from imsvd.explorer.thumbnails import SIZES

Offset = Annotated[int, Query(ge=0)]
Count = Annotated[int, Query(ge=1, le=200)]
NeighborCount = Annotated[int, Query(ge=1, le=100)]
OwnName = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]

_YEAR = 365 * 24 * 3600


def page_routes(files: dict[str, PageFile]) -> APIRouter:
    """The page and its files."""
    router = APIRouter()

    @router.get("/")
    def page(request: Request) -> Response:
        return _page_file(files, INDEX, request)

    @router.get("/static/{name}")
    def static(name: str, request: Request) -> Response:
        return _page_file(files, name, request)

    return router


def run_routes(explorer: Explorer) -> APIRouter:
    """What is asked of a run as a whole, of its variables and of its units."""
    router = APIRouter(prefix="/api")

    @router.get("/runs")
    def runs() -> Response:
        return _answer(explorer.overview())

    @router.get("/runs/{r}/variables")
    def all_variables(r: int) -> Response:
        return _answer(variables.variables(explorer.run(r)))

    @router.get("/runs/{r}/variables/{m}")
    def one_variable(r: int, m: int) -> Response:
        return _answer(variables.variable(explorer.run(r), m))

    @router.get("/runs/{r}/units/{m}/{d}")
    def unit(r: int, m: int, d: int, offset: Offset = 0, count: Count = 48) -> Response:
        return _answer(variables.unit(explorer.run(r), m, d, offset, count))

    @router.get("/runs/{r}/mutual-information")
    def mutual_information(r: int) -> Response:
        return _answer(variables.mutual_information(explorer.run(r)))

    @router.get("/runs/{r}/joint/{m}/{n}")
    def joint(r: int, m: int, n: int) -> Response:
        return _answer(variables.joint(explorer.run(r), m, n))

    @router.get("/runs/{r}/training")
    def training(r: int) -> Response:
        return _answer(training_curves.training(explorer.run(r)))

    @router.get("/compare")
    def compare(first: int, second: int) -> Response:
        return _answer(comparison.compare(explorer.run(first), explorer.run(second)))

    return router


def image_routes(explorer: Explorer) -> APIRouter:
    """What is asked of the explained images."""
    router = APIRouter(prefix="/api/runs/{r}/images")

    @router.get("")
    def listing(
        r: int, offset: Offset = 0, count: Count = 60, label: str | None = None
    ) -> Response:
        return _answer(images.image_list(explorer.run(r), offset, count, label))

    @router.get("/{i}")
    def image(r: int, i: int) -> Response:
        return _answer(images.image(explorer.run(r), i))

    @router.get("/{i}/neighbors")
    async def neighbors(
        r: int, i: int, by: images.By = "code", count: NeighborCount = 12
    ) -> Response:
        return _answer(await explorer.neighbors(r, i, by, count))

    @router.get("/{i}/thumbnail")
    def thumbnail(request: Request, r: int, i: int, size: int = 128) -> Response:
        _require_size(size, SIZES)
        headers = _caching(request, explorer.run(r).key, f"{i}-{size}")
        if _is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return _jpeg(explorer.thumbnail(r, i, size), headers)

    @router.get("/{i}/map/{m}/{d}")
    async def unit_map(
        request: Request, r: int, i: int, m: int, d: int, size: int = 256
    ) -> Response:
        _require_size(size, MAP_SIZES)
        headers = _caching(request, explorer.run(r).key, f"{i}-{m}-{d}-{size}")
        if _is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return _jpeg(await explorer.map(r, i, m, d, size), headers)

    return router


def own_routes(explorer: Explorer) -> APIRouter:
    """What is asked of images that a person drops in."""
    router = APIRouter(prefix="/api")

    @router.post("/runs/{r}/own")
    async def add(r: int, request: Request) -> Response:
        explorer.run(r)
        name = await explorer.add_own(r, await _body(request))
        return _answer(await explorer.own_image(r, name, "code", 12))

    @router.get("/runs/{r}/own/{own}")
    async def again(
        r: int, own: OwnName, by: images.By = "code", count: NeighborCount = 12
    ) -> Response:
        return _answer(await explorer.own_image(r, own, by, count))

    @router.get("/own/{own}/thumbnail")
    async def thumbnail(own: OwnName, size: int = 256, run: int = 0) -> Response:
        _require_size(size, SIZES)
        square = (await explorer.own_prepared(run, own)).square
        content = await run_in_threadpool(lambda: as_jpeg(square.resize((size, size))))
        return _jpeg(content, {"Cache-Control": "no-store"})

    @router.get("/own/{own}/map/{r}/{m}/{d}")
    async def unit_map(own: OwnName, r: int, m: int, d: int, size: int = 256) -> Response:
        _require_size(size, MAP_SIZES)
        return _jpeg(await explorer.own_map(own, r, m, d, size), {"Cache-Control": "no-store"})

    return router


async def _body(request: Request) -> bytes:
    """The image in a request, refused before it is read where its header promises too much."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("image/") and kind != "application/octet-stream":
        raise HTTPException(415, "Send the image itself, as image/… or application/octet-stream.")
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "Say with Content-Length how large the image is.")
    too_large = f"The file is larger than {MAX_FILE_BYTES // 1024**2} MB; make it smaller."
    if int(length) > MAX_FILE_BYTES:
        raise HTTPException(413, too_large)
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_FILE_BYTES:
            raise HTTPException(413, too_large)
    return bytes(content)


def _page_file(files: dict[str, PageFile], name: str, request: Request) -> Response:
    file = files.get(name)
    if file is None:
        raise HTTPException(404, "The page has no such file.")
    content, etag = file.content()
    if _is_known(request, etag):
        return Response(status_code=304, headers={"ETag": etag})
    return Response(content, headers={"Content-Type": file.kind, "ETag": etag})


def _answer(record: dict[str, Any]) -> Response:
    content = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content, media_type="application/json")


def _jpeg(content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, media_type="image/jpeg", headers=headers)


def _require_size(size: int, sizes: tuple[int, ...]) -> None:
    if size not in sizes:
        raise HTTPException(
            422, f"size={size} is not possible; choose {', '.join(map(str, sizes))}."
        )


def _is_known(request: Request, etag: str) -> bool:
    return etag in (part.strip() for part in request.headers.get("if-none-match", "").split(","))


def _caching(request: Request, key: str, name: str) -> dict[str, str]:
    """Headers for a picture; for good where its address names the explanation it belongs to."""
    named = request.query_params.get("v") == key
    lasting = f"private, max-age={_YEAR}, immutable" if named else "no-cache"
    return {"ETag": f'"{key}-{name}"', "Cache-Control": lasting}
