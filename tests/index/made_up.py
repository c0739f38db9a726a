"""Indexes of made-up codes, for which no encoder is needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imsvd.index import Index
from imsvd.index.columns import Numbers, level_of
from imsvd.index.segments import HASH_BYTES, Rows
from imsvd.index.storage import Change, Manifest, Root, Snapshot, write_manifest

UNITS = (4, 3, 32, 5, 300, 2)
ROOT = Root(data="/photos", split="", folder="/photos")


def rows(
    count: int,
    *,
    first: int = 0,
    seed: int = 0,
    units: Sequence[int] = UNITS,
    features: int | None = None,
    codes: Numbers | None = None,
) -> Rows:
    """Images called /photos/00000.jpg and so on."""
    random = np.random.default_rng(seed)
    if codes is None:
        dtype = np.uint8 if max(units) <= 256 else np.uint16
        codes = random.integers(0, units, (count, len(units))).astype(dtype)
    return Rows(
        codes,
        level_of(random.uniform(0.2, 1, codes.shape)),
        random.integers(0, 256, (count, HASH_BYTES), dtype=np.uint8),
        random.integers(1000, 9000, count, dtype=np.uint32),
        np.full(count, 1_700_000_000_000_000_000, dtype=np.uint64),
        [f"{number:05d}.jpg".encode() for number in range(first, first + count)],
        {
            "root": np.ones(count, dtype=np.uint32),
            "label": random.integers(0, 3, count, dtype=np.uint32),
        },
        None if features is None else random.normal(size=(count, features)).astype(np.float16),
    )


def made_up_index(
    folder: Path,
    *parts: Rows,
    units: Sequence[int] = UNITS,
    names: dict[str, str] | None = None,
    root: Root = ROOT,
    facets: dict[str, tuple[str, ...]] | None = None,
    near: dict[str, Any] | None = None,
) -> Index:
    """An index with one segment for each of the parts."""
    folder.mkdir(parents=True)
    features = parts[0].features
    manifest = Manifest(
        imsvd="0",
        run=str(folder.parent / "run"),
        encoder="0123456789ab",
        units=tuple(units),
        features=None if features is None else features.shape[1],
        roots=(root,),
        facets=facets or {"label": ("cat", "dog")},
        names=names or {},
        near=near or {},
    )
    change = Change(folder, manifest, Snapshot(manifest, ()))
    for part in parts:
        change = change._appending(part)
    write_manifest(folder, change.manifest)
    return Index(folder)


def add(index: Index, added: Rows) -> tuple[int, int]:
    """Add rows as `Index.add` does once they are encoded."""
    return index.add_rows(added, index.manifest.roots, index.facets)
