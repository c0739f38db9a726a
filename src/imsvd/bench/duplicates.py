"""`imsvd bench duplicates`: edited copies planted among photographs, and who finds them.

Some photographs get one copy each, edited in one of six ways. A found pair is right if it is a
photograph and its copy. Thresholds are set without looking at the answers: ours by `imsvd duplicates`,
those of perceptual hashes as their libraries have them. Rows that say "best" know the answers: they show
what no threshold could exceed.
"""

from __future__ import annotations

import importlib
import io
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps
from rich.console import Console

from imsvd.bench.comparison import Row, show_tables, write_tables
from imsvd.datasets import EncodedSource, ImageSource, UnreadableImage, open_source
from imsvd.errors import InputError
from imsvd.index import Index
from imsvd.index.calibration import of_length_one
from imsvd.progress import progress_bar
from imsvd.provenance import environment

HASH_DISTANCE = 10
"""Most bits of 64 in which perceptual hashes of copies differ: the default of imagededup."""

Pair = tuple[int, int]
"""Two images by number, the smaller first."""
Edit = Callable[[Image.Image, np.random.Generator], Image.Image]


def _crop(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    width, height = (round(0.9 * side) for side in picture.size)
    left = int(random.integers(picture.width - width + 1))
    top = int(random.integers(picture.height - height + 1))
    return picture.crop((left, top, left + width, top + height))


def _write(picture: Image.Image, _random: np.random.Generator) -> Image.Image:
    edited, size = picture.copy(), max(8, min(picture.size) // 14)
    ImageDraw.Draw(edited).text(
        (0.03 * picture.width, picture.height - 1.6 * size),
        "© photo",
        fill="white",
        font=ImageFont.load_default(size),
        stroke_width=max(1, size // 12),
        stroke_fill="black",
    )
    return edited


KINDS: dict[str, Edit] = {
    "crop to 90 %": _crop,
    "JPEG quality 30": lambda picture, _: picture,
    "flip": lambda picture, _: ImageOps.mirror(picture),
    "resize to half": lambda picture, _: picture.resize(
        (max(8, picture.width // 2), max(8, picture.height // 2)), Image.Resampling.LANCZOS
    ),
    "brightness ±30 %": lambda picture, random: ImageEnhance.Brightness(picture).enhance(
        float(random.choice([0.7, 1.3]))
    ),
    "small text": _write,
}
"""What is done to a copy before it is saved as JPEG, of quality 95 unless the kind says another."""


class Planted(NamedTuple):
    """Images with copies among them: their files, and the kind of each right pair."""

    files: list[Path]
    pairs: dict[Pair, str]

    def positions(self, index: Index) -> dict[int, int]:
        """Return the number of each image by its position in an index."""
        numbers = {str(path): number for number, path in enumerate(self.files)}
        return {place: numbers[path] for place, path in enumerate(index.paths)}


def plant(source: ImageSource, folder: Path, copies: int, seed: int) -> Planted:
    """Write all readable images of a source and `copies` edited copies, of all kinds in turn."""
    random = np.random.default_rng(seed)
    files, pairs = [], {}
    for number in range(len(source)):
        try:
            image = source.read(number)
        except UnreadableImage:
            continue
        if isinstance(source, EncodedSource):
            content = source.encoded(number)
            path = folder / f"{number:06d}{Path(source.identity(number)).suffix or '.jpg'}"
        else:
            content, path = (
                _saved(image.permute(1, 2, 0).numpy(), "PNG"),
                folder / f"{number:06d}.png",
            )
        path.write_bytes(content)
        files.append(path)
    if not 0 < copies <= len(files):
        raise InputError(f"copies = {copies}: choose 1 to {len(files)}, the number of images.")
    chosen = np.sort(random.permutation(len(files))[:copies])
    for place, original in enumerate(chosen.tolist()):
        kind = list(KINDS)[place % len(KINDS)]
        with Image.open(files[original]) as picture:
            edited = KINDS[kind](picture.convert("RGB"), random)
        path = folder / f"copy-{place:06d}.jpg"
        quality = 30 if kind == "JPEG quality 30" else 95
        path.write_bytes(_saved(np.asarray(edited), "JPEG", quality))
        pairs[original, len(files)] = kind
        files.append(path)
    return Planted(files, pairs)


def _saved(pixels: NDArray[np.uint8], form: str, quality: int = 95) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, form, quality=quality)
    return content.getvalue()


def score(found: Iterable[Pair], planted: dict[Pair, str]) -> dict[str, list[float]]:
    """Return precision, recall and F1 in percent: of all pairs, and by kind of those with such a copy."""
    pairs = set(found)
    kind_of = {copy: kind for (_, copy), kind in planted.items()}
    scores = {"all": _score(pairs, set(planted))}
    for kind in dict.fromkeys(planted.values()):
        own = {pair for pair in pairs if kind in (kind_of.get(pair[0]), kind_of.get(pair[1]))}
        scores[kind] = _score(own, {pair for pair, other in planted.items() if other == kind})
    return scores


def _score(found: set[Pair], wanted: set[Pair]) -> list[float]:
    right = len(found & wanted)
    precision = right / len(found) if found else 1.0
    recall = right / len(wanted)
    return [100 * precision, 100 * recall, 200 * right / (len(found) + len(wanted))]


def pairs_within(distances: NDArray[Any], limit: float) -> list[Pair]:
    """Return the pairs of images whose distance is at most `limit`, of a matrix of distances."""
    first, second = np.nonzero(np.triu(distances <= limit, 1))
    return list(zip(first.tolist(), second.tolist(), strict=True))


def best_limit(distances: NDArray[Any], planted: dict[Pair, str]) -> float:
    """Return the distance at which F1 is highest; it looks at the answers."""
    first, second = np.triu_indices(len(distances), 1)
    values = distances[first, second]
    right = np.zeros(distances.shape, dtype=bool)
    right[tuple(np.array(list(planted)).T)] = True
    order = np.argsort(values, kind="stable")
    values, hits = values[order], right[first, second][order].cumsum()
    f1 = 2 * hits / (np.arange(1, len(values) + 1) + len(planted))
    last = np.append(values[1:] != values[:-1], True)  # equal distances are accepted together
    return float(values[np.where(last, f1, -1).argmax()])


class _Way(NamedTuple):
    """Pairs that one way of searching has found."""

    label: str
    threshold: str
    pairs: list[Pair]


def _ours(index: Index, planted: Planted) -> list[_Way]:
    """Return what `imsvd duplicates` finds, and the cosine of all pairs of the same features."""
    numbers = planted.positions(index)
    found = index.duplicates()
    assert found.cosine is not None
    pairs = _pairs_of_groups([[copy.position for copy in group] for group in found.groups], numbers)
    features = of_length_one(np.asarray(index.features(), dtype=np.float32))
    order = [place for place, _ in sorted(numbers.items(), key=lambda item: item[1])]
    distances = 1 - features[order] @ features[order].T
    best = best_limit(distances, planted.pairs)
    cosine = "cosine of all pairs of features"
    limit = f"codes within {found.distance}, cosine {found.cosine:.3f}"
    return [
        _Way("imsvd duplicates", limit, pairs),
        _Way(
            f"{cosine}, our rule",
            f"cosine {found.cosine:.3f}",
            pairs_within(distances, 1 - found.cosine),
        ),
        _Way(f"{cosine}, best", f"cosine {1 - best:.3f}", pairs_within(distances, best)),
    ]


def _pairs_of_groups(groups: Sequence[Sequence[int]], numbers: dict[int, int]) -> list[Pair]:
    pairs = []
    for group in groups:
        members = sorted(numbers[position] for position in group)
        pairs += [(a, b) for place, a in enumerate(members) for b in members[place + 1 :]]
    return pairs


def hash_functions() -> dict[str, Callable[[Path], NDArray[np.bool_]]]:
    """Return the perceptual hashes that are installed; each takes a file and returns 64 bits."""
    functions: dict[str, Callable[[Path], NDArray[np.bool_]]] = {}
    try:
        imagehash = importlib.import_module("imagehash")
    except ImportError:
        raise InputError(
            "perceptual hashes need the package imagehash; install imsvd[bench]."
        ) from None
    for name in ("phash", "dhash", "whash", "average_hash"):
        functions[f"imagehash {name}"] = partial(_imagehash_bits, getattr(imagehash, name))
    with suppress(ImportError):
        methods = importlib.import_module("imagededup.methods")
        for name in ("PHash", "DHash", "WHash", "AHash"):
            hasher = getattr(methods, name)(verbose=False)
            functions[f"imagededup {name}"] = partial(_imagededup_bits, hasher)
    return functions


def _imagehash_bits(function: Any, path: Path) -> NDArray[np.bool_]:
    with Image.open(path) as picture:
        return np.asarray(function(picture).hash, dtype=bool).ravel()


def _imagededup_bits(hasher: Any, path: Path) -> NDArray[np.bool_]:
    number = int(hasher.encode_image(image_file=str(path)), 16)
    return np.array([number >> place & 1 for place in range(64)], dtype=bool)


def _hashed(planted: Planted, console: Console) -> list[_Way]:
    ways, functions = [], hash_functions()
    with progress_bar(console) as bar:
        task = bar.add_task("hashing", total=len(functions) * len(planted.files))
        for label, function in functions.items():
            bits = []
            for path in planted.files:
                bits.append(function(path))
                bar.advance(task)
            table = np.stack(bits)
            distances = (table[:, None] != table[None]).sum(axis=2)
            best = int(best_limit(distances, planted.pairs))
            for name, limit in ((label, HASH_DISTANCE), (f"{label}, best", best)):
                ways.append(_Way(name, f"{limit} bits", pairs_within(distances, limit)))
    return ways


def run(
    run: Path,
    data: str,
    copies: int = 120,
    seed: int = 0,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Plant copies among the images of `data` and search them with the codes of `run` and otherwise."""
    console = console or Console()
    with tempfile.TemporaryDirectory(prefix="imsvd-bench-") as folder:
        photographs = Path(folder) / "photographs"
        photographs.mkdir()
        planted = plant(open_source(data), photographs, copies, seed)
        ways = _hashed(planted, console)
        index = Index.build(
            run, photographs, Path(folder) / "a.index", features=True, console=console
        )
        ways = [*_ours(index, planted), *ways]
    rows: list[Row] = [
        {
            "label": way.label,
            "threshold": way.threshold,
            "pairs": len(way.pairs),
            "scores": score(way.pairs, planted.pairs),
        }
        for way in ways
    ]
    tables = _tables(rows)
    show_tables(tables, console)
    if output is not None:
        facts = environment() | {
            "run": str(run),
            "images": f"{len(planted.files) - copies:,} of {data}, and {copies:,} edited copies",
            "seed": str(seed),
        }
        write_tables(output, "Planted duplicates", facts, rows, tables)
    return rows


def _tables(rows: Sequence[Row]) -> dict[str, list[list[str]]]:
    kinds = [kind for kind in rows[0]["scores"] if kind != "all"]
    whole = [["found by", "threshold", "pairs", "precision, %", "recall, %", "F1, %"]]
    tables = {"All copies (rows that say “best” know the answers)": whole}
    for row in rows:
        numbers = [f"{value:.1f}" for value in row["scores"]["all"]]
        whole.append([row["label"], row["threshold"], str(row["pairs"]), *numbers])
    for place, title in enumerate(("Precision", "Recall", "F1")):
        tables[f"{title} by kind, %"] = [
            ["found by", *kinds],
            *(
                [row["label"], *(f"{row['scores'][kind][place]:.0f}" for kind in kinds)]
                for row in rows
            ),
        ]
    return tables
