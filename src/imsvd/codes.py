"""The discrete code of every image of a dataset, in one Parquet file.

| column | content |
|---|---|
| `path` | name of the image in the data |
| `codes` | unit of each variable: fixed-size list of uint8, or of uint16 above 256 units |
| `confidence` | probability of that unit: fixed-size list of float32 |
| `embedding` | features of the backbone, if requested: fixed-size list of float32 |
| `split` | train or test, if both are written |

Images that an index of the same encoder holds need not be encoded again. Its confidences are kept in steps and
its features as half floats, so the file then has these; codes are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from imsvd.datasets import ImageSource, UnreadableImage, open_source
from imsvd.datasets.sources import Subset
from imsvd.encoder import Encoder, encoder_key, encoding_device, open_encoder
from imsvd.errors import InputError
from imsvd.evaluation import extract_features
from imsvd.files import complete_or_absent
from imsvd.index.contents import Contents
from imsvd.index.known import ContentKey, KnownCodes, content_at, content_key
from imsvd.information import codes, max_probabilities
from imsvd.progress import progress_bar

SPLITS: dict[str, tuple[Literal["train", "test"], ...]] = {
    "train": ("train",),
    "test": ("test",),
    "all": ("train", "test"),
}

ROWS_PER_GROUP = 4096
"""Number of images encoded and written at a time."""


class Written(NamedTuple):
    """Number of images that were written, and of unreadable ones that were skipped."""

    images: int
    skipped: int


def write_codes(
    run: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    split: str = "train",
    embedding: bool = False,
    index: str | Path | None = None,
    console: Console | None = None,
) -> Written:
    """Encode the images of `data` and write their codes to the Parquet file `out`, complete or not at all.

    Args:
        run: a run folder.
        data: images, as for `open_source`; labels are not needed.
        out: Parquet file to write.
        split: train (all images if there is no test split), test or all.
        embedding: whether to write the features too.
        index: an index of the same encoder; images whose content it holds are taken from it, not encoded.
        console: where to show progress.
    """
    device = encoding_device()
    console = console or Console(quiet=True)
    encoder = open_encoder(run).to(device)
    known = None if index is None else _known_codes(Path(index), encoder, str(run), embedding)
    with progress_bar(console) as bar:
        task = bar.add_task("codes", total=None)
        written = _write(
            encoder,
            data,
            Path(out),
            run=str(run),
            split=split,
            embedding=embedding,
            known=known,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if written.skipped:
        console.print(f"[yellow]{written.skipped} unreadable images were skipped.[/yellow]")
    return written


def _write(
    encoder: Encoder,
    data: str | Path,
    out: Path,
    *,
    run: str,
    split: str,
    embedding: bool,
    known: KnownCodes | None,
    progress: Callable[[int, int], None],
) -> Written:
    arrow, parquet = _require_pyarrow()
    if not encoder.description.units:
        raise InputError(
            f"{run} has no codes: encoders trained with {encoder.description.method!r} have no "
            "discrete variables."
        )
    sources = _open_splits(data, split)
    total, done, skipped = sum(map(len, sources.values())), 0, 0
    schema = _schema(encoder, len(sources) > 1, embedding)
    schema = schema.with_metadata(_metadata(encoder, run, data))
    with complete_or_absent(out) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for name, part in _parts(sources):
            places, rows = _encode(encoder, part, known)
            columns = _columns(encoder, part, places, rows)
            skipped += len(part) - len(columns["path"])
            if "split" in schema.names:
                columns["split"] = [name] * len(columns["path"])
            writer.write_table(_table(arrow, schema, columns))
            done += len(part)
            progress(done, total)
        if skipped == total:
            raise InputError(f"none of the {total:,} images in {data} can be read.")
    return Written(total - skipped, skipped)


def _open_splits(data: str | Path, split: str) -> dict[str, ImageSource]:
    if split not in SPLITS:
        raise InputError(f"there is no --split {split}; choose {', '.join(SPLITS)}.")
    return {name: open_source(data, name) for name in SPLITS[split]}


def _parts(sources: Mapping[str, ImageSource]) -> Iterator[tuple[str, Subset]]:
    for name, source in sources.items():
        for start in range(0, len(source), ROWS_PER_GROUP):
            stop = min(start + ROWS_PER_GROUP, len(source))
            yield name, Subset(source, range(start, stop))


class _Columns(nn.Module):
    """Concatenates codes, their probabilities and the features of normalized images."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        units = self.encoder.description.units
        features = self.encoder.backbone(images)
        q = self.encoder.discretize(features)
        # float32 holds codes exactly: they are far below 2^24.
        return torch.cat([codes(q, units).to(q.dtype), max_probabilities(q, units), features], 1)


def _known_codes(folder: Path, encoder: Encoder, run: str, embedding: bool) -> KnownCodes:
    index = Contents(folder)
    if index.manifest.encoder != encoder_key(encoder.description, encoder.state_dict()):
        raise InputError(
            f"{folder} was made with another encoder than {run}, so its codes are not those of {run}; "
            "give another --index, or none."
        )
    if embedding and index.manifest.features is None:
        raise InputError(
            f"{folder} keeps no features to write; leave out --index or --embedding, or build the index "
            "with --features."
        )
    return index.known_codes()


def _encode(
    encoder: Encoder, part: Subset, known: KnownCodes | None
) -> tuple[list[int], NDArray[np.float32]]:
    """Return the readable images of a row group, and codes, confidences and features of each."""
    if known is None:
        return _encode_new(encoder, part)
    rows = np.array([known.row(_key(part, place)) for place in range(len(part))], dtype=np.int64)
    new = np.flatnonzero(rows < 0)
    places, made = (
        list(np.flatnonzero(rows >= 0)),
        [known.matrix(rows[rows >= 0], encoder.num_features)],
    )
    if len(new):
        encoded = Subset(part.source, [part.indices[place] for place in new])
        readable, matrix = _encode_new(encoder, encoded)
        places, made = [*places, *new[readable]], [*made, matrix]
    order = np.argsort(places)
    return [int(places[number]) for number in order], np.concatenate(made)[order]


def _key(part: Subset, place: int) -> ContentKey:
    source, index = part.source, part.indices[place]
    try:
        return content_key(source, content_at(source, index))
    except UnreadableImage:
        return ContentKey(b"", -1)  # known nowhere, and skipped when it is to be encoded


def _encode_new(encoder: Encoder, part: Subset) -> tuple[list[int], NDArray[np.float32]]:
    described = encoder.description
    try:
        encoded = extract_features(
            _Columns(encoder),
            part,
            size=described.size,
            mean=described.mean,
            std=described.std,
            device=encoder.mean.device,
        )
    except InputError:
        # No image of this group can be read; other groups may be fine.
        width = 2 * len(described.units) + encoder.num_features
        return [], np.empty((0, width), dtype=np.float32)
    bad = {image.index for image in encoded.skipped}
    return [place for place in range(len(part)) if place not in bad], encoded.features.numpy()


def _columns(
    encoder: Encoder, part: Subset, places: Sequence[int], rows: NDArray[np.float32]
) -> dict[str, Any]:
    variables = len(encoder.description.units)
    return {
        "path": [part.identity(place) for place in places],
        "codes": rows[:, :variables].astype(np.int32),
        "confidence": rows[:, variables : 2 * variables],
        "embedding": rows[:, 2 * variables :],
    }


def _schema(encoder: Encoder, several: bool, embedding: bool) -> Any:
    arrow, _ = _require_pyarrow()
    units = encoder.description.units
    small = arrow.uint8() if max(units) <= 256 else arrow.uint16()
    fields = [
        arrow.field("path", arrow.string()),
        arrow.field("codes", arrow.list_(small, len(units))),
        arrow.field("confidence", arrow.list_(arrow.float32(), len(units))),
    ]
    if embedding:
        width = encoder.num_features
        fields.append(arrow.field("embedding", arrow.list_(arrow.float32(), width)))
    if several:
        fields.append(arrow.field("split", arrow.string()))
    return arrow.schema(fields)


def _metadata(encoder: Encoder, run: str, data: str | Path) -> dict[str, str]:
    return {
        "run": run,
        "data": str(data),
        "units": json.dumps(list(encoder.description.units)),
        "imsvd": version("imsvd"),
    }


def _table(arrow: Any, schema: Any, columns: Mapping[str, Any]) -> Any:
    arrays = []
    for field in schema:
        values = columns[field.name]
        if isinstance(values, np.ndarray):
            flat = arrow.array(values.flatten()).cast(field.type.value_type)
            arrays.append(arrow.FixedSizeListArray.from_arrays(flat, type=field.type))
        else:
            arrays.append(arrow.array(values, field.type))
    return arrow.Table.from_arrays(arrays, schema=schema)


def _require_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415 - optional
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise InputError("imsvd codes needs pyarrow; run pip install 'imsvd[data]'.") from None
    return pyarrow, pyarrow.parquet
