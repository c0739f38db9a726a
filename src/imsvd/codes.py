"""The discrete code of every image of a dataset, in one Parquet file.

| column | content |
|---|---|
| `path` | name of the image in the data |
| `codes` | unit of each variable: fixed-size list of uint8, or of uint16 above 256 units |
| `confidence` | probability of that unit: fixed-size list of float32 |
| `embedding` | features of the backbone, if requested: fixed-size list of float32 |
| `split` | train or test, if both are written |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn

from imsvd.datasets import ImageSource, open_source
from imsvd.datasets.sources import Subset
from imsvd.encoder import Encoder, encoding_device, open_encoder
from imsvd.errors import InputError
from imsvd.evaluation import extract_features
from imsvd.files import complete_or_absent
from imsvd.information import codes, max_probabilities, soft_discretize
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
    console: Console | None = None,
) -> Written:
    """Encode the images of `data` and write their codes to the Parquet file `out`, complete or not at all.

    Args:
        run: a run folder.
        data: images, as for `open_source`; labels are not needed.
        out: Parquet file to write.
        split: train (all images if there is no test split), test or all.
        embedding: whether to write the features too.
        console: where to show progress.
    """
    device = encoding_device()
    console = console or Console(quiet=True)
    encoder = open_encoder(run).to(device)
    with progress_bar(console) as bar:
        task = bar.add_task("codes", total=None)
        written = _write(
            encoder,
            data,
            Path(out),
            run=str(run),
            split=split,
            embedding=embedding,
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
            columns = _encode(encoder, part, embedding)
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
        q = soft_discretize(self.encoder.projector(features), units)
        # float32 holds codes exactly: they are far below 2^24.
        return torch.cat([codes(q, units).to(q.dtype), max_probabilities(q, units), features], 1)


def _encode(encoder: Encoder, part: Subset, embedding: bool) -> dict[str, Any]:
    """Return the columns of one row group; images that cannot be read have no row."""
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
        rows, paths = torch.empty(0, width), []
    else:
        bad = {image.index for image in encoded.skipped}
        rows = encoded.features
        paths = [part.identity(index) for index in range(len(part)) if index not in bad]
    variables = len(described.units)
    columns = {
        "path": paths,
        "codes": rows[:, :variables].int(),
        "confidence": rows[:, variables : 2 * variables],
    }
    return columns | ({"embedding": rows[:, 2 * variables :]} if embedding else {})


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
        if isinstance(values, Tensor):
            flat = arrow.array(values.flatten().numpy()).cast(field.type.value_type)
            arrays.append(arrow.FixedSizeListArray.from_arrays(flat, type=field.type))
        else:
            arrays.append(arrow.array(values, field.type))
    return arrow.Table.from_arrays(arrays, schema=schema)


def _require_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415 - optional
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise InputError("imsvd codes needs pyarrow; run pip install 'imsvd[parquet]'.") from None
    return pyarrow, pyarrow.parquet
