"""Making an index and adding many images to one, both resumable.

Encoded images wait in a hidden folder beside the index until all are there:

identity.json          what is being done; anything else starts anew
part-N.safetensors     the images of one batch, in the form of a segment

Then they become segments. A new index is moved to its place when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from imsvd.datasets import BadImage
from imsvd.datasets.reading import image_key
from imsvd.datasets.sources import hash_listing
from imsvd.errors import InputError
from imsvd.evaluation.features import BATCH_SIZE
from imsvd.files import remove_leftovers, write_atomically
from imsvd.index.calibration import measure_copies
from imsvd.index.encoding import Coder, Part, Request, facet_values, open_parts, read_rows
from imsvd.index.known import read_known
from imsvd.index.names import read_names
from imsvd.index.segments import Rows, Segment, encode, join
from imsvd.index.storage import (
    MANIFEST,
    SEGMENT_IMAGES,
    Manifest,
    Root,
    SegmentEntry,
    locked,
    read_manifest,
    remove_unnamed,
    write_manifest,
    write_segment,
)
from imsvd.progress import progress_bar

IDENTITY = "identity.json"

Facets = dict[str, NDArray[np.uint32]]
Listed = dict[str, tuple[str, ...]]
"""Names of the values of every facet."""


def build(
    run: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    split: str = "all",
    features: bool = False,
    console: Console | None = None,
) -> int:
    """Make the index `out` of the images in `data`; the same call resumes after an interruption.

    Args:
        run: run folder of an encoder with discrete variables.
        data: images, as for `open_source`.
        out: folder to make.
        split: train, test, or all that there are.
        features: whether to keep the features as half floats.
        console: where to show progress.

    Returns:
        The number of images that could not be read and are left out.
    """
    out, console = Path(out), console or Console(quiet=True)
    if not (out / MANIFEST).exists():
        _refuse_existing(out)
    coder, parts = Coder(run), open_parts(data, split)
    roots = tuple(part.root for part in parts)
    requests, listed = requests_for(parts, roots, {})
    manifest = Manifest(
        imsvd=version("imsvd"),
        run=coder.run,
        encoder=coder.key,
        units=coder.units,
        features=coder.encoder.num_features if features else None,
        roots=roots,
        facets=listed,
        names=read_names(coder.run),
    )
    identity = [manifest.model_dump(mode="json", exclude={"names"}), *image_keys(parts)]
    manifest = manifest.model_copy(
        update={"built_from": hash_listing([json.dumps(identity).encode()])}
    )
    if _is_built(out, manifest):
        console.print(f"{out} holds these images already.", highlight=False, soft_wrap=True)
        return sum(len(part.source) for part in parts) - read_manifest(out).images
    _refuse_existing(out)
    with staging(out, "building", identity) as folder:
        _refuse_existing(out)
        if not (folder / MANIFEST).exists():
            encode_parts(folder, coder, requests, features, console)
            near = measure_copies(coder, parts, console)
            _write_index(folder, manifest.model_copy(update={"near": near}), console)
        for path in [*folder.glob("part-*.safetensors"), folder / IDENTITY]:
            path.unlink(missing_ok=True)
        finished = read_manifest(folder)
        remove_unnamed(folder, finished)
        folder.rename(out)
        _sync(out.parent)
    return sum(len(part.source) for part in parts) - finished.images


def _is_built(out: Path, wanted: Manifest) -> bool:
    """Return whether the same command has made `out`, and was killed as it ended, or is given again."""
    if not (out / MANIFEST).exists():
        return False
    found = read_manifest(out)
    is_changed = any(entry.num_removed for entry in found.segments) or found.roots != wanted.roots
    return found.built_from == wanted.built_from and not is_changed


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise InputError(
            f"{out} exists already; add images to it with `imsvd add {out} DATA`, or give another --out."
        )


def image_keys(parts: Sequence[Part]) -> list[str]:
    """Return what changes with the images of the parts."""
    return [image_key(part.source) for part in parts]


def requests_for(
    parts: Sequence[Part], roots: Sequence[Root], known: Listed
) -> tuple[list[Request], Listed]:
    """Return requests for all images of some parts, and `known` names of facet values with new ones added.

    The root of every part must be among `roots`.
    """
    requests, listed = [], known
    for part in parts:
        values, listed = _facets(part, listed)
        own = roots.index(part.root) + 1
        total = len(part.source)
        places = [part.place(index, roots, own) for index in range(total)]
        requests.append(Request(part, places, values, batched(range(total))))
    return requests, listed


def batched(positions: Sequence[int]) -> list[Sequence[int]]:
    """Cut positions into batches."""
    return [positions[start : start + BATCH_SIZE] for start in range(0, len(positions), BATCH_SIZE)]


def _facets(part: Part, known: Listed) -> tuple[Facets, Listed]:
    """Return labels, attributes and split of a part's images, and the names of all values."""
    values, listed = facet_values(part.source, known)
    if part.root.split:
        splits = listed.get("split", ())
        listed["split"] = splits if part.root.split in splits else (*splits, part.root.split)
        number = listed["split"].index(part.root.split) + 1
        values["split"] = np.full(len(part.source), number, dtype=np.uint32)
    return values, listed


@contextmanager
def staging(index: Path, purpose: str, identity: Any) -> Iterator[Path]:
    """Give the folder in which `purpose` is prepared, with what an interruption left of the same.

    The folder is deleted at the end, if it is still there, and stays after a failure.
    """
    folder = index.absolute().with_name(f".{index.name}.{purpose}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}).") from error
    with locked(folder, wait=False):
        path, content = folder / IDENTITY, json.dumps(identity).encode()
        if not path.exists() or path.read_bytes() != content:
            for left in folder.iterdir():
                if left.name != "lock":
                    left.unlink()
            write_atomically(path, content)
        remove_leftovers(folder)
        yield folder
        # While it is locked: another process may prepare the same as soon as it is not.
        if folder.exists():
            shutil.rmtree(folder)


def encode_parts(
    folder: Path, coder: Coder, requests: Sequence[Request], features: bool, console: Console
) -> None:
    """Write the file of every batch that has none yet."""
    known = read_known(coder.run, coder.key, coder.units)
    left = done = sum(1 for _ in folder.glob("part-*.safetensors"))
    bad: list[BadImage] = []
    with progress_bar(console) as bar:
        total = sum(len(batch) for request in requests for batch in request.batches)
        task = bar.add_task("images", total=total)
        for request in requests:
            skipped, waiting = request.batches[:left], request.batches[left:]
            left -= len(skipped)
            bar.update(task, advance=sum(map(len, skipped)))
            rows_of_batches = read_rows(coder, request._replace(batches=waiting), features, known)
            for batch, (rows, unreadable) in zip(waiting, rows_of_batches, strict=True):
                content = encode(rows, coder.units, {})
                write_atomically(folder / f"part-{done:06d}.safetensors", content)
                done += 1
                bad += unreadable
                bar.update(task, advance=len(batch))
    report_unreadable(bad, console)


def report_unreadable(bad: Sequence[BadImage], console: Console) -> None:
    """Say how many images were left out, and why the first was."""
    if bad:
        console.print(
            f"Left out {len(bad):,} unreadable images; the first is {bad[0].identity} ({bad[0].reason}).",
            style="yellow",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def encoded_parts(folder: Path, units: Sequence[int]) -> Iterator[Rows]:
    """Yield the rows of all batches that were encoded."""
    for path in sorted(folder.glob("part-*.safetensors")):
        yield Segment(path, units, path.stat().st_size).rows()


def _write_index(folder: Path, manifest: Manifest, console: Console) -> None:
    """Join the parts to segments and write the manifest."""
    entries: list[SegmentEntry] = []
    waiting: list[Rows] = []

    def write() -> None:
        if sum(map(len, waiting)):
            entries.append(write_segment(folder, len(entries), join(waiting), manifest))
        waiting.clear()

    with progress_bar(console) as bar:
        count = sum(1 for _ in folder.glob("part-*.safetensors"))
        for rows in bar.track(encoded_parts(folder, manifest.units), count, description="writing"):
            if sum(map(len, waiting)) + len(rows) > SEGMENT_IMAGES:
                write()
            waiting.append(rows)
    write()
    if not entries:
        raise InputError(f"none of the images in {manifest.roots[0].data} can be read.")
    finished = {"segments": tuple(entries), "next_file": len(entries)}
    write_manifest(folder, manifest.model_copy(update=finished))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
