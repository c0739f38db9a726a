"""`imsvd bench index`: questions to an index of many codes, against faiss and scanning with NumPy.

Codes are drawn from those of a real index. An image has the codes of two or more real images side by side,
as many variables as wanted; each variable is then replaced, with probability one half, by that of another
real image. So every variable keeps its distribution, and much of the dependence between variables stays.
Every hundredth image is a copy of the one before with up to three variables changed. Features for
IndexFlatIP are sums of a random vector for each unit; IndexBinaryFlat has the codes in binary. Near-
duplicates by faiss are measured on 200 images and multiplied, because all would take hours.

The NumPy scan has codes row by row in memory and returns positions alone; a search also orders them by
confidence, and looks up paths, reasons and the state of files.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from imsvd.bench.comparison import (
    Benchmark,
    Case,
    Column,
    Contender,
    Numbers,
    Row,
    peak,
    reset_peak,
)
from imsvd.index import Index
from imsvd.index.close_codes import close_pairs, make_plan
from imsvd.index.columns import Numbers as Codes
from imsvd.index.columns import level_of
from imsvd.index.query import parse
from imsvd.index.searching import find, vocabulary
from imsvd.index.segments import HASH_BYTES, Rows
from imsvd.index.storage import SEGMENT_IMAGES, Manifest, Root, write_manifest, write_segment

NEAR_VARIABLES = 4
"""Near-duplicates differ in at most this many variables."""
_WIDTH = 128
_ASKED = 200
_RESULTS = 20

Work = Callable[[], Any]
Ask = Callable[[Path, Codes], dict[str, tuple[Work, float]]]
"""Prepares questions: by the name of a number, the work, and the factor from its seconds to the number."""


def draw_codes(real: Codes, images: int, variables: int) -> Codes:
    """Draw codes (images, variables) from real ones, as the module says."""
    random = np.random.default_rng(0)
    count, width = real.shape
    codes = np.empty((images, variables), dtype=np.uint8)
    for variable in range(variables):
        if variable % width == 0:
            rows = random.integers(0, count, images)
        column = real[:, variable % width]
        others = random.integers(0, count, images)
        codes[:, variable] = column[np.where(random.random(images) < 0.5, others, rows)]
    codes[1::100] = codes[:-1:100][: len(codes[1::100])]
    for _ in range(3):
        changed = random.integers(0, variables, len(codes[1::100]))
        other = codes[random.integers(0, images, len(changed)), changed]
        codes[np.arange(1, images, 100), changed] = other
    return codes


def made_rows(codes: Codes, first: int = 0) -> Rows:
    """Return images with some codes and made-up files."""
    random = np.random.default_rng(first)
    count = len(codes)
    return Rows(
        codes,
        level_of(random.uniform(0.3, 1, codes.shape).astype(np.float32)),
        random.integers(0, 256, (count, HASH_BYTES), dtype=np.uint8),
        random.integers(10_000, 5_000_000, count, dtype=np.uint32),
        np.full(count, 1_700_000_000_000_000_000, dtype=np.uint64),
        [
            f"{number // 1000:04d}/IMG_{number:07d}.jpg".encode()
            for number in range(first, first + count)
        ],
        {"root": np.ones(count, dtype=np.uint32)},
    )


def make_index(folder: Path, codes: Codes, units: tuple[int, ...]) -> None:
    """Write an index of made-up files."""
    folder.mkdir()
    root = Root(data="/photos", split="", folder="/photos")
    manifest = Manifest(imsvd="0", run="/run", encoder="0", units=units, roots=(root,))
    entries = tuple(
        write_segment(
            folder, number, made_rows(codes[start : start + SEGMENT_IMAGES], start), manifest
        )
        for number, start in enumerate(range(0, len(codes), SEGMENT_IMAGES))
    )
    finished = {"segments": entries, "next_file": len(entries)}
    write_manifest(folder, manifest.model_copy(update=finished))


def _asked_units(codes: Codes) -> list[int]:
    """Return the most frequent unit of each of three variables."""
    return [int(np.bincount(codes[:, variable]).argmax()) for variable in range(3)]


def _ours(folder: Path, codes: Codes) -> dict[str, tuple[Work, float]]:
    index = Index(folder / "big.index")
    one, two, three = _asked_units(codes)
    query, example = f"0.{one} & 1.{two} & !2.{three}", index.paths[len(index) // 2]
    added = iter(range(len(index), len(index) + 1000))

    def add() -> None:
        number = next(added)
        index.add_rows(made_rows(codes[:1], number), index.manifest.roots, index.facets)

    def near() -> int:
        different = np.unique(index.codes(), axis=0)
        plan = make_plan(different, NEAR_VARIABLES)
        return len(close_pairs(different, index.units, plan)[0])

    return {
        "find_ms": (lambda: find(index, parse(query, vocabulary(index))), 1000),
        "query_ms": (lambda: index.search(query, count=_RESULTS), 1000),
        "like_ms": (lambda: index.like(example, _RESULTS), 1000),
        "near_seconds": (near, 1),
        "add_ms": (add, 1000),
    }


def _numpy(_folder: Path, codes: Codes) -> dict[str, tuple[Work, float]]:
    one, two, three = _asked_units(codes)
    weights = np.linspace(1, 3, codes.shape[1], dtype=np.float32)
    example = codes[len(codes) // 2]

    def find_all() -> Any:
        return np.flatnonzero((codes[:, 0] == one) & (codes[:, 1] == two) & (codes[:, 2] != three))

    def like() -> Any:
        scores = (codes == example) @ weights
        return np.argpartition(scores, -_RESULTS)[-_RESULTS:]

    return {"find_ms": (find_all, 1000), "like_ms": (like, 1000)}


def _faiss_binary(_folder: Path, codes: Codes) -> dict[str, tuple[Work, float]]:
    import faiss  # noqa: PLC0415

    bits = np.unpackbits(codes[:, :, None], axis=2, bitorder="little")[:, :, : _bits(codes)]
    packed = np.packbits(bits.reshape(len(codes), -1), axis=1)
    index = faiss.IndexBinaryFlat(packed.shape[1] * 8)
    index.add(packed)
    middle = len(codes) // 2
    asked = packed[:: max(1, len(packed) // _ASKED)]
    return {
        "like_ms": (lambda: index.search(packed[middle : middle + 1], _RESULTS), 1000),
        "near_seconds": (
            lambda: index.range_search(asked, NEAR_VARIABLES),
            len(codes) / len(asked),
        ),
    }


def _faiss_products(_folder: Path, codes: Codes) -> dict[str, tuple[Work, float]]:
    import faiss  # noqa: PLC0415

    features = _features(codes)
    index = faiss.IndexFlatIP(_WIDTH)
    index.add(features)
    middle = len(codes) // 2
    asked = features[:: max(1, len(features) // _ASKED)]
    return {
        "like_ms": (lambda: index.search(features[middle : middle + 1], _RESULTS), 1000),
        "near_seconds": (lambda: index.range_search(asked, 0.9), len(codes) / len(asked)),
    }


def _bits(codes: Codes) -> int:
    return int(codes.max()).bit_length()


def _features(codes: Codes) -> NDArray[np.float32]:
    random = np.random.default_rng(0)
    features = np.zeros((len(codes), _WIDTH), dtype=np.float32)
    for column in codes.T:
        features += random.normal(size=(256, _WIDTH)).astype(np.float32)[column]
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features


CONTENDERS: dict[str, Contender[Ask]] = {
    "ours": Contender("imsvd", _ours),
    "numpy": Contender("NumPy scan", _numpy),
    "faiss-binary": Contender("faiss IndexBinaryFlat", _faiss_binary, ("faiss",)),
    "faiss-products": Contender("faiss IndexFlatIP", _faiss_products, ("faiss",)),
}


@dataclass(frozen=True)
class IndexCase(Case):
    """Who is asked, and the folder with the codes."""

    folder: str
    images: int
    variables: int


class _Index(Benchmark[IndexCase]):
    case = IndexCase
    contenders = CONTENDERS
    heading = "Indexes"
    first_column = "index"
    columns = (
        Column("positions of a query with NOT, ms", "find_ms", ".2f"),
        Column("/ ours", "find_ratio"),
        Column("best 20 with paths and reasons, ms", "query_ms"),
        Column("20 most alike, ms", "like_ms"),
        Column("/ ours", "like_ratio"),
        Column("near-duplicates of all, s", "near_seconds", ".1f"),
        Column("/ ours", "near_ratio"),
        Column("peak MiB", "near_mib", ".0f"),
        Column("add one, ms", "add_ms"),
        Column("bytes per image", "bytes", ".0f"),
    )
    hidden = ("folder",)
    packages = ("numpy", "faiss-cpu", "pyroaring")

    def title(self, row: Row) -> str:
        return f"{row['images']:,} images of {row['variables']} variables"

    def variables(self, _case: IndexCase) -> dict[str, str]:
        return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count() or 1))}

    def measure(self, case: IndexCase) -> Numbers:
        folder = Path(case.folder)
        codes = np.load(folder / "codes.npy")
        found: Numbers = {}
        if case.contender == "ours":
            found["bytes"] = Index(folder / "big.index").num_bytes / len(codes)
        for name, (work, factor) in CONTENDERS[case.contender].make(folder, codes).items():
            if name != "near_seconds":
                work()  # reads what is mapped, and loads libraries
            reset_peak()
            times = []
            for _ in range(1 if name == "near_seconds" else 5):
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
            found[name] = statistics.median(times) * factor
            if name == "near_seconds":
                found["near_mib"] = peak() / 2**20
        return found

    def derive(self, found: dict[IndexCase, Numbers]) -> dict[IndexCase, Numbers]:
        ours = next(numbers for case, numbers in found.items() if case.contender == "ours")
        for numbers in found.values():
            for name in ("find_ms", "like_ms", "near_seconds"):
                if name in numbers:
                    numbers[f"{name.split('_')[0]}_ratio"] = numbers[name] / ours[name]
        return found


BENCHMARK = _Index()


def run(
    index: Path,
    images: int = 1_000_000,
    variables: int = 64,
    repeats: int = 1,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Ask an index of `images` codes drawn from those of a real index, and others."""
    real = Index(index)
    units = tuple(real.units[variable % len(real.units)] for variable in range(variables))
    with tempfile.TemporaryDirectory(prefix="imsvd-bench-") as folder:
        codes = draw_codes(np.ascontiguousarray(real.codes()), images, variables)
        np.save(Path(folder) / "codes.npy", codes)
        make_index(Path(folder) / "big.index", codes, units)
        del codes
        cases = [IndexCase(name, folder, images, variables) for name in CONTENDERS]
        return BENCHMARK.run(cases, repeats, console, output)
