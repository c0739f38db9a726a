"""Reading many images: bad ones replaced and listed, small ones held in memory, workers for the rest."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, repeat
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from imsvd.datasets.decoding import UnreadableImage
from imsvd.datasets.sources import EncodedSource, ImageSource, PathSource
from imsvd.datasets.streams import StreamSource
from imsvd.errors import InputError
from imsvd.processors import stand_back, usable_processors

_MAX_SIDE = 96
_MAX_BYTES = 2 * 1024**3
_SAMPLE = 32
_CHUNK = 64
_KEY_SAMPLE = 64

Key = TypeVar("Key")
Batch = TypeVar("Batch")


class BadImage(NamedTuple):
    """An image that could not be read, and why."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    identity: str
    reason: str


def image_key(source: ImageSource) -> str:
    """Return twelve hexadecimal digits that change with the images, not only with their names.

    File sizes and the content of some images enter it; reading all of them would take too long.
    """
    digest = hashlib.sha256(source.fingerprint().encode())
    if isinstance(source, StreamSource):  # may be remote, and every image costs a whole chunk
        return digest.hexdigest()[:12]
    if isinstance(source, PathSource):
        digest.update(np.array([_file_size(source.path(i)) for i in range(len(source))]).tobytes())
    for index in range(0, len(source), max(1, -(-len(source) // _KEY_SAMPLE))):
        digest.update(hashlib.sha256(_content(source, index)).digest())
    return digest.hexdigest()[:12]


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _content(source: ImageSource, index: int) -> bytes:
    try:
        if isinstance(source, EncodedSource):
            return source.encoded(index)
        return source.read(index).numpy().tobytes()
    except UnreadableImage:
        return b""


def read_or_replace(source: ImageSource, index: int) -> tuple[Tensor, int, list[BadImage]]:
    """Read an image, or the next readable one after it, wrapping around at the end.

    The replacement depends on the data alone, so workers, ranks and resumed runs agree.

    Returns:
        The image, uint8 (3, height, width); the index that was read; the bad images before it.
    """
    bad: list[BadImage] = []
    for step in range(len(source)):
        candidate = (index + step) % len(source)
        try:
            return source.read(candidate), candidate, bad
        except UnreadableImage as error:
            bad.append(BadImage(candidate, error.identity, error.reason))
    raise InputError(
        f"none of the {len(source):,} images can be read; "
        f"the first is {bad[0].identity} ({bad[0].reason})."
    )


class Quarantine:
    """The list of bad images, kept in the main process and in `path`, one JSON object per line.

    An existing list is loaded, without images that have been repaired since. More bad images than
    `limit`, a fraction of the source, raise `InputError`, which names the `setting` of the limit.
    """

    def __init__(
        self,
        source: ImageSource,
        limit: float = 0.01,
        path: Path | None = None,
        setting: str = "data.bad_image_limit",
    ) -> None:
        self._source = source
        self._limit = limit
        self._setting = setting
        self._path = path
        self._bad: dict[int, BadImage] = {}
        if path is not None and path.exists():
            self._bad = {bad.index: bad for bad in _listed(path) if _is_still_bad(source, bad)}
            self._enforce_limit()

    @property
    def count(self) -> int:
        """Return the number of known bad images."""
        return len(self._bad)

    @property
    def listed(self) -> list[BadImage]:
        """Return the known bad images."""
        return list(self._bad.values())

    def adopt(self, bad: Iterable[BadImage]) -> None:
        """Add the bad images found by another process; raise `InputError` if there are too many."""
        self._bad.update({item.index: item for item in bad})
        self._enforce_limit()

    def report(self, bad: Iterable[BadImage]) -> None:
        """Add bad images to the list; raise `InputError` if there are too many in total."""
        new = {item.index: item for item in bad if item.index not in self._bad}
        if not new:
            return
        self._bad.update(new)
        if self._path is not None:
            _append(self._path, new.values())
        self._enforce_limit()

    def replacements(self) -> Tensor:
        """Return the index that `read_or_replace` reads for every index, (n,) int64.

        After a pass over all images, `labels[quarantine.replacements()]` are the labels of the
        images actually seen.
        """
        indices = torch.arange(len(self._source))
        for index in sorted(self._bad, reverse=True):
            replacement = (index + 1) % len(self._source)
            while replacement in self._bad and replacement != index:
                replacement = (replacement + 1) % len(self._source)
            indices[index] = replacement
        return indices

    def _enforce_limit(self) -> None:
        total = len(self._source)
        if self.count <= self._limit * total:
            return
        first = next(iter(self._bad.values()))
        listed = f"; all are listed in {self._path}" if self._path is not None else ""
        raise InputError(
            f"{self.count:,} of {total:,} images ({self.count / total:.1%}, more than the "
            f"{self._limit:.1%} allowed) cannot be read; the first is {first.identity} "
            f"({first.reason}){listed}; remove them or raise {self._setting}."
        )


def _listed(path: Path) -> list[BadImage]:
    """Return the entries of a list, skipping a last line that was cut off by a kill."""
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            entries.append(BadImage(int(entry["index"]), entry["identity"], entry["reason"]))
        except (ValueError, KeyError, TypeError):
            continue
    return entries


def _is_still_bad(source: ImageSource, bad: BadImage) -> bool:
    # The identity is compared because the data may have changed since.
    if not 0 <= bad.index < len(source) or source.identity(bad.index) != bad.identity:
        return False
    try:
        source.read(bad.index)
    except UnreadableImage:
        return True
    return False


def _append(path: Path, entries: Iterable[BadImage]) -> None:
    lines = "".join(json.dumps(entry._asdict()) + "\n" for entry in entries)
    with path.open("a+b") as file:
        if file.tell() > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":  # after a line that was cut off, start a new one
                lines = "\n" + lines
        file.write(lines.encode())


def small_image_size(source: ImageSource) -> int | None:
    """Return the side of the images if they are square, small, alike and fit in memory.

    Only the headers of an evenly spaced sample are read; `load_into_memory` verifies the rest.
    """
    step = max(1, len(source) // _SAMPLE)
    sizes: set[tuple[int, int]] = set()
    for index in range(0, len(source), step):
        try:
            sizes.add(source.size(index))
        except UnreadableImage:
            continue  # quarantined when it is read
    if len(sizes) != 1:
        return None
    height, width = sizes.pop()
    fits = height <= _MAX_SIDE and len(source) * 3 * height * width <= _MAX_BYTES
    return height if height == width and fits else None


def load_into_memory(
    source: ImageSource,
    quarantine: Quarantine,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor | None:
    """Read all images in several threads, replacing bad ones as `read_or_replace` does.

    `size` is their side, by default that of `small_image_size`; `progress` gets (done, total).

    Returns:
        uint8 (n, 3, size, size), or None if an image has another size or they are too large; then
        they must be read one by one.
    """
    size = size or small_image_size(source)
    if size is None:
        return None
    total = len(source)
    images = torch.empty(total, 3, size, size, dtype=torch.uint8)
    chunks = [range(start, min(start + _CHUNK, total)) for start in range(0, total, _CHUNK)]
    executor = ThreadPoolExecutor(max_workers=min(8, usable_processors()))
    try:
        for chunk, (chunk_images, bad) in zip(
            chunks, executor.map(lambda chunk: _read_chunk(source, chunk), chunks), strict=True
        ):
            quarantine.report(bad)
            if any(image.shape != images.shape[1:] for image in chunk_images):
                return None
            torch.stack(chunk_images, out=images[chunk.start : chunk.stop])
            if progress is not None:
                progress(chunk.stop, total)
    finally:
        executor.shutdown(cancel_futures=True)
    return images


def _read_chunk(source: ImageSource, chunk: range) -> tuple[list[Tensor], list[BadImage]]:
    """Return the images of a chunk, (3, height, width) each, and the bad ones."""
    try:
        return source.read_many(chunk), []
    except UnreadableImage:
        outcomes = [read_or_replace(source, index) for index in chunk]
    return (
        [image for image, _, _ in outcomes],
        [item for _, _, bad in outcomes for item in bad],
    )


READER_SECONDS = 600
"""Longest time for a batch: a worker without memory may hang instead of ending."""
GREETINGS, GREETING_SECONDS = 2, 60
"""Greetings per worker, as many keys as a loader sends ahead; and the time from the first to the second."""
_SILENCE = Path(os.devnull).open("w")  # noqa: SIM115  # open as long as workers may end


def load_batches(
    read: Callable[[Key], Batch],
    keys: Iterable[Key],
    workers: int,
    *,
    pin_memory: bool = False,
) -> Generator[Batch, None, None]:
    """Yield `read(key)` for every key, in order, with workers that end when this generator does.

    Args:
        read: makes a whole batch; must be picklable.
        keys: identify the batches.
        workers: number of processes; 0 reads in this one.
        pin_memory: whether to place batches in memory that is fast to copy to a GPU.
    """
    greetings = GREETINGS * workers
    loader: DataLoader[Any] = DataLoader(
        _Reading(read),
        sampler=chain(repeat(_Greeting, greetings), keys),
        batch_size=None,
        num_workers=workers,
        collate_fn=_unchanged,
        worker_init_fn=_begin_worker,
        pin_memory=pin_memory,
        timeout=READER_SECONDS if workers else 0,
        # Otherwise a loader draws from the global generator, once more after every resumption.
        generator=torch.Generator(),
    )
    iterator = iter(loader)
    try:
        yield from islice(iterator, greetings, None)
    except InputError as error:
        # A worker's error arrives with its traceback; its last line is the message.
        message = str(error).strip().splitlines()[-1]
        raise InputError(message.removeprefix("imsvd.errors.InputError: ")) from error
    except (EOFError, ImportError, MemoryError, OSError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not (workers and _is_lost_worker(error)):
            raise
        raise InputError(
            "a process that reads images was killed, ran out of memory or hangs; free some memory or lower "
            f"compute.workers={workers}, and run the same command to resume."
        ) from error
    finally:
        # Workers ignore SIGTERM, so without this they would keep the program from exiting.
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()


def _is_lost_worker(error: Exception) -> bool:
    """Return whether a worker died or lacked memory, also for a library, rather than that reading failed."""
    if isinstance(error, ImportError):
        return True
    if isinstance(error, RuntimeError):
        return "DataLoader" in str(error)
    # The connection over which a worker hands over its batch; what reading raises begins with "Caught".
    return isinstance(error, ConnectionError | EOFError | FileNotFoundError) and not str(
        error
    ).startswith("Caught")


class _Greeting:
    """Stands for a key at which a worker only shows that it can deliver."""


class _Reading(Dataset[Any], Generic[Key, Batch]):
    """A function in the form that `DataLoader` requires.

    Workers answer greetings first. The first one starts the thread that delivers batches; where memory is
    lacking, Python waits forever for a thread that could not begin, and the second one never comes.
    """

    def __init__(self, read: Callable[[Key], Batch]) -> None:
        self.read = read
        self.greeted = False

    def __getitem__(self, key: Key | type[_Greeting]) -> Batch | None:
        if not isinstance(key, type):
            return self.read(key)
        if self.greeted:
            faulthandler.cancel_dump_traceback_later()
            return None
        self.greeted = True
        try:
            # A thread outside of Python, which ends this process without memory of its own.
            faulthandler.dump_traceback_later(GREETING_SECONDS, exit=True, file=_SILENCE)
            threading.Thread(target=bool).start()  # like the one that delivers
        except (MemoryError, RuntimeError) as error:
            _end_worker(error, None)
        return None


def _unchanged(batch: Batch) -> Batch:
    return batch


def _begin_worker(worker: int) -> None:
    """Stand back behind training, leave signals to it, and end if a batch cannot be delivered.

    Ctrl-C reaches the whole process group and would otherwise end a worker before the save. A batch for
    which memory is lacking would be dropped, and training would wait for it.
    """
    del worker
    stand_back()
    Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end_worker(error: BaseException, batch: object) -> NoReturn:
    """End this worker at once; the process that waits for it says so in one sentence."""
    del error, batch
    os._exit(1)
