"""The explorer as a web application: routes, the guard before them, a sentence for every error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from imsvd.errors import InputError
from imsvd.explorer.explained_run import AbsentError, ExplainedRun, open_run
from imsvd.explorer.explorer import Explorer
from imsvd.explorer.guard import Guard
from imsvd.explorer.own_images import UnusableImageError
from imsvd.explorer.page_files import page_files
from imsvd.explorer.routes import image_routes, own_routes, page_routes, run_routes
from imsvd.explorer.seeing import BusyError


def create_app(
    runs: Sequence[ExplainedRun | str | Path],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
) -> FastAPI:
    """Return the application for explained runs, to be served by uvicorn or asked in tests.

    Args:
        runs: run folders, or runs that are open already.
        host: the address it is served at.
        port: the port that requests must name; None accepts every one.
        token: what every request must bring; None asks for none.
    """
    explorer = Explorer([run if isinstance(run, ExplainedRun) else open_run(run) for run in runs])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        explorer.close()

    # The built-in pages about the interface load scripts from elsewhere.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    for router in (
        page_routes(page_files()),
        run_routes(explorer),
        image_routes(explorer),
        own_routes(explorer),
    ):
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (AbsentError, UnusableImageError, BusyError, InputError):
        app.add_exception_handler(kind, _sentence)
    app.add_middleware(Guard, host=host, port=port, token=token)
    return app


def _sentence(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, _status(error))


def _status(error: Exception) -> int:
    if isinstance(error, UnusableImageError):
        return 413 if error.too_large else 400
    if isinstance(error, BusyError):
        return 503
    return 404 if isinstance(error, AbsentError) else 409


def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "There is nothing at this address.",
        405: "This address cannot be asked like that.",
    }
    built_in = error.detail in ("Not Found", "Method Not Allowed")
    sentence = sentences[error.status_code] if built_in else error.detail
    return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    name = str(problem["loc"][-1])
    reason = str(problem["msg"])
    sentence = f"{name}: {reason[0].lower()}{reason[1:]}."
    return JSONResponse({"error": sentence}, 422)
