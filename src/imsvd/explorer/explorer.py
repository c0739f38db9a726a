"""What the server holds while it lives: the runs, their thumbnails and maps, dropped-in images."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool

from imsvd.evaluation.features import center_crop
from imsvd.explorer import images
from imsvd.explorer.explained_run import AbsentError, ExplainedRun
from imsvd.explorer.own_images import OwnImages, Prepared, prepare
from imsvd.explorer.pictures import as_jpeg, lay_over, seen_square
from imsvd.explorer.seeing import EncoderThread, see, unit_map
from imsvd.explorer.thumbnails import Thumbnails

MAP_SIZES = (128, 256)
MOST_MAPS = 512


class Explorer:
    """Answers for several runs, numbered as they were given."""

    def __init__(self, runs: Sequence[ExplainedRun]) -> None:
        self.runs = tuple(runs)
        self.encoders = EncoderThread()
        self.own = OwnImages()
        self._thumbnails = [Thumbnails(run) for run in runs]
        self._maps = _Recent(MOST_MAPS)

    def run(self, number: int) -> ExplainedRun:
        """The run with that number."""
        if not 0 <= number < len(self.runs):
            raise AbsentError(f"There is no run {number}; they are 0 to {len(self.runs) - 1}.")
        return self.runs[number]

    def overview(self) -> dict[str, Any]:
        """All runs in a few lines each."""
        return {
            "runs": [_overview(number, run) for number, run in enumerate(self.runs)],
            "uploads": True,
        }

    def thumbnail(self, number: int, image: int, size: int) -> bytes:
        """A small JPEG of an image."""
        self.run(number)
        return self._thumbnails[number].jpeg(image, size)

    async def map(self, number: int, image: int, variable: int, unit: int, size: int) -> bytes:
        """A JPEG of an image with the evidence of a unit laid over it."""
        run = self.run(number)
        run.row(image)
        place = run.place(variable, unit)

        def draw() -> bytes:
            encoder = self.encoders.encoder(run)
            picture = run.read(image)
            evidence = unit_map(encoder, center_crop(picture, run.description.size), place)
            return as_jpeg(lay_over(seen_square(picture, run.description.size, size), evidence))

        return await self._drawn((number, image, place, size), draw)

    async def own_map(self, name: str, number: int, variable: int, unit: int, size: int) -> bytes:
        """The same of a dropped-in image."""
        run = self.run(number)
        place = run.place(variable, unit)

        def draw() -> bytes:
            encoder = self.encoders.encoder(run)
            prepared = self.own.prepared(name, number, encoder)
            evidence = unit_map(encoder, prepared.picture, place)
            return as_jpeg(lay_over(prepared.square.resize((size, size)), evidence))

        return await self._drawn((name, number, place, size), draw)

    async def _drawn(self, key: tuple[object, ...], draw: Callable[[], bytes]) -> bytes:
        known = self._maps.get(key)
        if known is None:
            # Asked again inside: of several requests for one map, the first draws it for all.
            known = await self.encoders.run(lambda: self._maps.get(key) or draw())
            self._maps.put(key, known)
        return known

    async def neighbors(self, number: int, image: int, by: images.By, count: int) -> dict[str, Any]:
        """The images most like one."""
        run = self.run(number)
        row = run.row(image)
        code = run.encodings.codes[row]
        if by == "code":
            return await run_in_threadpool(
                lambda: images.neighbors_by_code(run, code, count, without=row)
            )
        kept = images.kept_features(run, row)
        features = await self._features(run, image) if kept is None else kept
        return await run_in_threadpool(
            lambda: images.neighbors_by_features(run, features, code, count, without=row)
        )

    async def _features(self, run: ExplainedRun, image: int) -> NDArray[np.float32]:
        """Features that were not kept."""

        def look() -> NDArray[np.float32]:
            picture = center_crop(run.read(image), run.description.size)
            return see(self.encoders.encoder(run), picture).features

        return await self.encoders.run(look)

    async def add_own(self, number: int, content: bytes) -> str:
        """Keep a dropped-in file, if it is an image, and return the name it is kept by."""
        run = self.run(number)

        def take() -> str:
            prepared = prepare(content, self.encoders.encoder(run))
            return self.own.add(content, {number: prepared})

        return await self.encoders.run(take)

    async def own_image(self, number: int, name: str, by: images.By, count: int) -> dict[str, Any]:
        """Code and neighbors of a dropped-in image."""
        run = self.run(number)
        seen = (await self.own_prepared(number, name)).seen
        if by == "code":
            found = await run_in_threadpool(lambda: images.neighbors_by_code(run, seen.code, count))
        else:
            found = await run_in_threadpool(
                lambda: images.neighbors_by_features(run, seen.features, seen.code, count)
            )
        return {"own": name, "code": images.code_record(seen.code, seen.confidence), **found}

    async def own_prepared(self, number: int, name: str) -> Prepared:
        """A dropped-in image as the encoder of a run sees it."""
        run = self.run(number)
        return await self.encoders.run(
            lambda: self.own.prepared(name, number, self.encoders.encoder(run))
        )

    def close(self) -> None:
        """End the thread of the encoders."""
        self.encoders.close()


def _overview(number: int, run: ExplainedRun) -> dict[str, Any]:
    metrics = run.run.metrics()
    joint = run.summary["parts"].get("joint")
    return {
        "id": number,
        "name": run.run.path.resolve().name,
        "path": str(run.run.path),
        "key": run.key,
        "method": run.description.method,
        "epochs": metrics[-1]["epoch"] if metrics else None,
        "images": len(run.encodings.images),
        "data": run.summary["data"],
        "split": run.summary["split"],
        "units": list(run.units),
        "size": run.description.size,
        "leading": run.leading,
        "parts": list(run.summary["parts"]),
        "labels": list(run.source.classes) if run.source.labels is not None else None,
        "attributes": list(run.source.attributes),
        "headline": run.summary["parts"],
        "properties": joint["properties"] if joint is not None else None,
    }


class _Recent:
    """The pictures that were asked for last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...]) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[object, ...], content: bytes) -> None:
        with self._lock:
            self._kept[key] = content
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
