"""The state of a running explorer: runs, indexes, encoders, recent maps and uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool

from imsvd.encoder import Encoder, encoding_device, load
from imsvd.errors import InputError
from imsvd.evaluation.features import center_crop
from imsvd.explanations.subject import is_of_encoder
from imsvd.explorer import records
from imsvd.explorer.bodies import Bodies
from imsvd.explorer.explained_run import ExplainedRun, NotFoundError
from imsvd.explorer.opened_index import OpenedIndex
from imsvd.explorer.pictures import (
    Prepared,
    Thumbnails,
    Uploads,
    as_jpeg,
    encode,
    encoder_crop,
    overlay,
    prepare,
    unit_map,
)

MAX_MAPS = 512
MAX_WAITING = 64

Result = TypeVar("Result")


class BusyError(RuntimeError):
    """Too many requests wait for the encoder."""


class EncoderThread:
    """Runs all work that needs an encoder in one thread, one task at a time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._encoders: dict[ExplainedRun, Encoder] = {}
        self._waiting = 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Await `work` without occupying one of the server's threads."""
        if self._waiting >= MAX_WAITING:
            raise BusyError("The encoder is busy with earlier requests; try again in a moment.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._waiting -= 1

    def encoder(self, run: ExplainedRun) -> Encoder:
        """Return the encoder of a run, loading it on first use; call only from within `run`."""
        if run not in self._encoders:
            encoder = load(run.run.path)
            if not is_of_encoder(run.key, encoder.description, encoder.state_dict()):
                raise InputError(
                    f"The weights in {run.run.path} have changed since it was explained; "
                    f"run `{run.command}` again."
                )
            device = encoding_device()
            self._encoders[run] = encoder.to(device)
        return self._encoders[run]

    def close(self) -> None:
        """Finish the running task and drop the waiting ones."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Explorer:
    """Answers requests about several runs and indexes, each numbered in the order given."""

    def __init__(self, runs: Sequence[ExplainedRun], indexes: Sequence[OpenedIndex] = ()) -> None:
        self.runs, self.indexes = tuple(runs), tuple(indexes)
        self.encoders = EncoderThread()
        self.uploads = Uploads()
        self.bodies = Bodies()
        self._thumbnails = [Thumbnails(run) for run in runs]
        self._maps: dict[tuple[object, ...], bytes] = {}

    def run(self, number: int) -> ExplainedRun:
        """Return the run with that number."""
        return _numbered(self.runs, number, "run")

    def index(self, number: int) -> OpenedIndex:
        """Return the index with that number."""
        return _numbered(self.indexes, number, "index")

    def overview(self) -> dict[str, Any]:
        """Summarize every run."""
        return {"runs": [_overview(number, run) for number, run in enumerate(self.runs)]}

    def thumbnail(self, number: int, image: int, size: int) -> bytes:
        """Return a small JPEG of an image."""
        self.run(number)
        return self._thumbnails[number].jpeg(image, size)

    async def map(self, number: int, image: int, variable: int, unit: int, size: int) -> bytes:
        """Return a JPEG of an image with the evidence for a unit drawn over it."""
        run = self.run(number)
        run.row(image)
        place = run.place(variable, unit)

        def draw() -> bytes:
            encoder = self.encoders.encoder(run)
            picture = run.read(image)
            evidence = unit_map(encoder, center_crop(picture, run.description.size), place)
            return as_jpeg(overlay(encoder_crop(picture, run.description.size, size), evidence))

        return await self._drawn((number, image, place, size), draw)

    async def upload_map(
        self, name: str, number: int, variable: int, unit: int, size: int
    ) -> bytes:
        """Return the same for an uploaded image."""
        run = self.run(number)
        place = run.place(variable, unit)

        def draw() -> bytes:
            encoder = self.encoders.encoder(run)
            prepared = self.uploads.prepared(name, number, encoder)
            evidence = unit_map(encoder, prepared.picture, place)
            return as_jpeg(overlay(prepared.square.resize((size, size)), evidence))

        return await self._drawn((name, number, place, size), draw)

    async def _drawn(self, key: tuple[object, ...], draw: Callable[[], bytes]) -> bytes:
        """Return a map from the cache, or draw it in the encoder's thread."""
        content = self._maps.get(key)
        if content is None:
            # Checked again in the thread: of several requests for one map, only the first draws.
            content = await self.encoders.run(lambda: self._maps.get(key) or draw())
        # The most recent map goes last. Only the event loop changes the cache: it needs no lock.
        self._maps.pop(key, None)
        self._maps[key] = content
        if len(self._maps) > MAX_MAPS:
            del self._maps[next(iter(self._maps))]
        return content

    async def neighbors(
        self, number: int, image: int, by: records.By, count: int
    ) -> dict[str, Any]:
        """List the images most similar to one."""
        run = self.run(number)
        row = run.row(image)
        code = run.encodings.codes[row]
        features = await self._features(run, image) if by == "features" else None
        return await run_in_threadpool(
            lambda: records.neighbors(run, code, features, count, without=row)
        )

    async def _features(self, run: ExplainedRun, image: int) -> NDArray[np.floating[Any]]:
        """Return the features of an image; they are computed if they were not saved."""
        saved = records.saved_features(run, run.row(image))
        if saved is not None:
            return saved
        return await self.encoders.run(
            lambda: (
                encode(
                    self.encoders.encoder(run), center_crop(run.read(image), run.description.size)
                ).features
            )
        )

    async def add_upload(self, number: int, content: bytes) -> str:
        """Keep an uploaded image and return its name."""
        run = self.run(number)

        def take() -> str:
            prepared = prepare(content, self.encoders.encoder(run))
            return self.uploads.add(content, {number: prepared})

        return await self.encoders.run(take)

    async def upload(self, number: int, name: str, by: records.By, count: int) -> dict[str, Any]:
        """Return code and neighbors of an uploaded image."""
        run = self.run(number)
        code, confidence, features = (await self.prepared(number, name)).encoded
        given = features if by == "features" else None
        found = await run_in_threadpool(lambda: records.neighbors(run, code, given, count))
        return {"upload": name, "code": records.code_record(code, confidence), **found}

    async def prepared(self, number: int, name: str) -> Prepared:
        """Return an uploaded image as the encoder of a run sees it."""
        run = self.run(number)
        return await self.encoders.run(
            lambda: self.uploads.prepared(name, number, self.encoders.encoder(run))
        )


def _numbered(items: Sequence[Result], number: int, kind: str) -> Result:
    if 0 <= number < len(items):
        return items[number]
    plural = {"run": "runs", "index": "indexes"}[kind]
    known = f"{plural} 0 to {len(items) - 1}" if items else f"no {plural}"
    raise NotFoundError(f"There is no {kind} {number}; this explorer has {known}.")


def _overview(number: int, run: ExplainedRun) -> dict[str, Any]:
    metrics = run.run.metrics()
    parts = run.summary["parts"]
    return {
        "id": number,
        "name": run.run.path.resolve().name,
        "path": str(run.run.path),
        "key": run.key,
        "method": run.description.method,
        "epochs": metrics[-1]["epoch"] if metrics else None,
        "images": len(run.encodings.images),
        "command": run.command,
        "data": run.summary["data"],
        "split": run.summary["split"],
        "units": list(run.units),
        "leading": run.leading,
        "parts": list(parts),
        "labels": list(run.source.classes) if run.source.labels is not None else None,
        "attributes": list(run.source.attributes),
        "properties": parts["joint"]["properties"] if "joint" in parts else None,
    }
