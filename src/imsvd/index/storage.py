"""The folder of an index: a manifest that names its files, replaced as a whole at every change.

manifest.json          everything about the index except its images; names, sizes and hashes of the files
segment-N.safetensors  images, see `segments`; never changed once written
removed-N.roaring      numbers of the removed images of one segment, a serialized Roaring bitmap
lock                   held by the process that is changing the index

A change writes new files first and replaces the manifest last. Whatever interrupts it, the manifest
names only whole files: those of the index before the change, or after it. Files that no manifest names
are deleted by the next change. Readers keep the files that they have mapped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from pyroaring import BitMap

from imsvd.errors import InputError
from imsvd.files import remove_leftovers, write_atomically
from imsvd.index.segments import Rows, Segment, damaged, encode, join
from imsvd.settings import Settings, describe_validation_error, keys_of

FORMAT = 1
"""Version of the manifest; incremented when older versions of imsvd could misread it."""

MANIFEST = "manifest.json"
SEGMENT_IMAGES = 65_536
"""Most images of a segment."""
TAIL_IMAGES = 1024
"""A last segment with fewer images is written again together with the images that are added."""
SMALL_SEGMENTS = 64
"""When this many segments are not full, they are merged."""
HASHED_ON_OPENING = 2**16
"""Files up to this size are hashed when they are opened; for others, size and header are compared."""


class FileEntry(Settings):
    """A file that the manifest names."""

    file: str
    bytes: int
    sha256: str


class SegmentEntry(FileEntry):
    """A segment, and which of its images were removed."""

    images: int
    id: str
    removed: FileEntry | None = None
    num_removed: int = 0


class Root(Settings):
    """Where names of images begin.

    Attributes:
        data: the folder, archive or dataset as it was given.
        split: the split of it.
        folder: folder of the image files; empty if the images are not files.
    """

    data: str
    split: str
    folder: str = ""


class Manifest(Settings):
    """Everything about an index except its images."""

    format: int = FORMAT
    imsvd: str
    run: str
    encoder: str
    """Identifies the encoder's description and weights."""
    units: tuple[int, ...]
    features: int | None = None
    """Width of the features, if they are kept."""
    roots: tuple[Root, ...] = ()
    facets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Names of the values of every facet, from value 1 on."""
    names: dict[str, str] = Field(default_factory=dict)
    """Names that the user gave to units such as "12.3" and variables such as "12"."""
    near: dict[str, Any] = Field(default_factory=dict)
    """What distinguishes near-duplicates, see `calibration`."""
    built_from: str = ""
    """Identifies the command and the images that made the index."""
    segments: tuple[SegmentEntry, ...] = ()
    next_file: int = 0

    @property
    def images(self) -> int:
        """Number of images that count."""
        return sum(entry.images - entry.num_removed for entry in self.segments)


class Snapshot(NamedTuple):
    """An index as one manifest describes it."""

    manifest: Manifest
    segments: tuple[Segment, ...]

    def opened(self) -> dict[SegmentEntry, Segment]:
        """Return the segments by their entries."""
        return dict(zip(self.manifest.segments, self.segments, strict=True))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an index."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        checksum = content.pop("sha256")
    except FileNotFoundError:
        kind = "is not an index" if folder.is_dir() else "does not exist"
        raise InputError(
            f"{folder} {kind}; make one with `imsvd index RUN DATA --out {folder}`."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(damaged(path)) from error
    if checksum != _checksum(content):
        raise InputError(damaged(path))
    if content.get("format", 0) > FORMAT:
        raise InputError(f"{path} was written by a newer imsvd; update this version.")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise InputError(
            f"{path}: {describe_validation_error(error, keys_of(Manifest))}"
        ) from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest; from then on the index is what it describes."""
    content: dict[str, Any] = manifest.model_dump(mode="json")
    content["sha256"] = _checksum(content)
    write_atomically(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_snapshot(folder: Path, known: Snapshot | None = None) -> Snapshot:
    """Open the manifest and all its segments; files never change, so those of `known` stay open."""
    opened = {} if known is None else known.opened()
    while True:
        manifest = read_manifest(folder)
        try:
            return Snapshot(
                manifest,
                tuple(open_segment(folder, entry, manifest, opened) for entry in manifest.segments),
            )
        except FileNotFoundError as error:
            # A change since then may have deleted the file; its manifest names another.
            if read_manifest(folder) == manifest:
                raise InputError(
                    f"{error.filename} is missing; restore it from a copy or build the index again."
                ) from error
        except OSError as error:
            raise InputError(f"{error.filename} cannot be read ({error.strerror}).") from error


def open_segment(
    folder: Path,
    entry: SegmentEntry,
    manifest: Manifest,
    opened: Mapping[SegmentEntry, Segment] = MappingProxyType({}),
) -> Segment:
    """Map a segment after comparing size and header with the manifest, unless it is `opened` already."""
    path = folder / entry.file
    known = opened.get(entry)
    if known is not None and path.stat().st_size == entry.bytes:
        return known
    removed = None if entry.removed is None else _read_removed(folder, entry.removed)
    if entry.bytes <= HASHED_ON_OPENING:
        _check_hash(path, entry)
    segment = Segment(path, manifest.units, entry.bytes, removed)
    if segment.encoder != manifest.encoder:
        raise InputError(
            f"{path} has codes of another encoder than its index; restore the right file from a copy "
            "or build the index again."
        )
    if segment.id != entry.id or segment.count != entry.images:
        raise InputError(
            f"{path} is not the segment that its index names; restore the right file from a copy or "
            "build the index again."
        )
    return segment


def _read_removed(folder: Path, entry: FileEntry) -> NDArray[np.int64]:
    content = _check_hash(folder / entry.file, entry)
    return np.array(BitMap.deserialize(content), dtype=np.int64)


def _check_hash(path: Path, entry: FileEntry) -> bytes:
    content = path.read_bytes()
    if len(content) != entry.bytes or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise InputError(damaged(path))
    return content


def verify(folder: Path, progress: Callable[[int, int], None] = lambda _done, _total: None) -> None:
    """Hash all files of an index and compare them with its manifest.

    `progress` gets (bytes done, bytes in total).
    """
    manifest = read_manifest(folder)
    entries: list[FileEntry] = [*manifest.segments]
    entries += [entry.removed for entry in manifest.segments if entry.removed]
    total, done = sum(entry.bytes for entry in entries), 0
    for entry in entries:
        path, digest = folder / entry.file, hashlib.sha256()
        try:
            with path.open("rb") as file:
                while chunk := file.read(2**22):
                    digest.update(chunk)
                    done += len(chunk)
                    progress(done, total)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}).") from error
        if digest.hexdigest() != entry.sha256:
            raise InputError(damaged(path))


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Keep other processes from changing the folder; the lock ends with the process, however it ends."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{folder} cannot be changed ({error.strerror}).") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    except BlockingIOError:
        raise InputError(
            f"another process is writing to {folder}; wait until it is done."
        ) from None
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Change:
    """A change of an index in progress: files are written, and `manifest` will name them."""

    folder: Path
    manifest: Manifest
    before: Snapshot
    """The index before the change."""

    def removing(self, positions: NDArray[np.int64]) -> Change:
        """Remove the images at `positions`, which count all images of the index before the change."""
        entries, next_file = list(self.manifest.segments), self.manifest.next_file
        start = 0
        for number, segment in enumerate(self.before.segments):
            stop = start + len(segment)
            inside = positions[(positions >= start) & (positions < stop)] - start
            start = stop
            if not len(inside):
                continue
            rows = inside if segment.live is None else segment.live[inside]
            removed = np.union1d(segment.removed, rows)
            name = f"removed-{next_file:06d}.roaring"
            file = _write(self.folder, name, BitMap(removed.tolist()).serialize())
            update = {"removed": file, "num_removed": len(removed)}
            entries[number] = entries[number].model_copy(update=update)
            next_file += 1
        return self._with(entries, next_file)

    def adding(self, rows: Rows) -> Change:
        """Add images at the end; a short last segment is written again with them."""
        entries, next_file = list(self.manifest.segments), self.manifest.next_file
        parts = [rows]
        if entries and entries[-1].images < TAIL_IMAGES:
            parts.insert(0, self._open(entries.pop()).rows())
        return self._with(entries, next_file)._appending(join(parts))._merged()

    def _open(self, entry: SegmentEntry) -> Segment:
        return open_segment(self.folder, entry, self.manifest, self.before.opened())

    def changing(self, **fields: Any) -> Change:
        """Change other entries of the manifest."""
        return replace(self, manifest=self.manifest.model_copy(update=fields))

    def _appending(self, rows: Rows) -> Change:
        entries, next_file = list(self.manifest.segments), self.manifest.next_file
        for start in range(0, len(rows), SEGMENT_IMAGES):
            chosen = np.arange(start, min(start + SEGMENT_IMAGES, len(rows)))
            part = rows if len(chosen) == len(rows) else rows.chosen(chosen)
            entries.append(write_segment(self.folder, next_file, part, self.manifest))
            next_file += 1
        return self._with(entries, next_file)

    def _merged(self) -> Change:
        """Merge segments that are not full once there are many; removed images are left out."""
        entries = self.manifest.segments
        small = [entry for entry in entries if entry.images < SEGMENT_IMAGES // 2]
        return self.compacted() if len(small) >= SMALL_SEGMENTS else self

    def compacted(self) -> Change:
        """Write segments that are not full, or of which images were removed, anew as full ones."""
        change = self._with([], self.manifest.next_file)
        waiting: list[Rows] = []
        for entry in self.manifest.segments:
            if entry.images == SEGMENT_IMAGES and entry.removed is None and not waiting:
                kept = [*change.manifest.segments, entry]
                change = change._with(kept, change.manifest.next_file)
                continue
            waiting.append(self._open(entry).rows())
            if sum(map(len, waiting)) >= SEGMENT_IMAGES:
                joined = join(waiting)
                change = change._appending(joined.chosen(np.arange(SEGMENT_IMAGES)))
                waiting = [joined.chosen(np.arange(SEGMENT_IMAGES, len(joined)))]
        if sum(map(len, waiting)):
            change = change._appending(join(waiting))
        return change

    def _with(self, entries: Sequence[SegmentEntry], next_file: int) -> Change:
        # A segment without images would have to be mapped by every reader.
        kept = tuple(entry for entry in entries if entry.images > entry.num_removed)
        return self.changing(segments=kept, next_file=next_file)


def write_segment(folder: Path, number: int, rows: Rows, manifest: Manifest) -> SegmentEntry:
    """Write a segment and return its entry."""
    identity = secrets.token_hex(8)
    content = encode(rows, manifest.units, {"id": identity, "encoder": manifest.encoder})
    written = _write(folder, f"segment-{number:06d}.safetensors", content)
    return SegmentEntry(**written.model_dump(), images=len(rows), id=identity)


def _write(folder: Path, name: str, content: bytes) -> FileEntry:
    write_atomically(folder / name, content)
    return FileEntry(file=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def apply(
    folder: Path, change: Callable[[Change], Change], known: Snapshot | None = None
) -> Snapshot:
    """Change an index, of which `known` is an earlier state; return what it is then.

    The last step replaces the manifest.
    """
    with locked(folder):
        before = read_snapshot(folder, known)
        after = change(Change(folder, before.manifest, before)).manifest
        if after != before.manifest:
            write_manifest(folder, after)
        remove_unnamed(folder, after)
        return read_snapshot(folder, before)


def remove_unnamed(folder: Path, manifest: Manifest) -> None:
    """Delete files of earlier manifests and of interrupted changes; nobody else may be writing."""
    remove_leftovers(folder)
    named = {entry.file for entry in manifest.segments}
    named |= {entry.removed.file for entry in manifest.segments if entry.removed}
    for pattern in ("segment-*.safetensors", "removed-*.roaring"):
        for path in folder.glob(pattern):
            if path.name not in named:
                with suppress(OSError):
                    path.unlink()
