"""One table over runs and protocols, with the paper's number where the setting is the same."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imsvd.config import Config
from imsvd.errors import InputError
from imsvd.evaluation import KNNSettings, read_results
from imsvd.paper_numbers import reported
from imsvd.recipes import recipe
from imsvd.runs import RunFolder

IMAGENET = re.compile(r"(imagenet|imagenet-?1k|ilsvrc|ilsvrc-?2012)", re.IGNORECASE)
"""Names of a folder that holds ImageNet, and not a part or a relative of it."""

TEST_IMAGES = {
    "linear": 50_000,
    "knn": 50_000,
    "voc07": 4_952,
    "places205": 20_500,
    "coco": 5_000,
}
"""Images that the paper's protocols test on, by which smaller data of the same form are told apart."""


class ResultRow(NamedTuple):
    """One number of one evaluation."""

    run: str
    method: str
    backbone: str
    epochs: int | None
    protocol: str
    data: str
    metric: str
    value: float
    paper: float | None


def collect(runs: Sequence[str | Path]) -> list[ResultRow]:
    """Return the latest result of every protocol and dataset, run by run."""
    rows = [row for run in runs for row in _rows(Path(run))]
    if not rows:
        raise InputError(
            f"there are no results in {', '.join(map(str, runs))}; "
            "`imsvd evaluate knn RUN DATA` makes one."
        )
    return rows


def _rows(run: Path) -> list[ResultRow]:
    folder = RunFolder(run)
    if not run.is_dir():
        raise InputError(f"there is no run folder {run}.")
    latest = {(record["protocol"], record["data"]): record for record in read_results(run)}
    config = folder.config() if folder.exists() else None
    metrics = folder.metrics()
    epochs = int(metrics[-1]["epoch"]) if metrics else None
    return [
        ResultRow(
            str(run),
            config.method.name if config else "",
            config.backbone.name if config else "",
            epochs,
            protocol,
            data,
            metric,
            float(value),
            _paper_number(config, epochs, record, metric),
        )
        for (protocol, data), record in latest.items()
        for metric, value in record["metrics"].items()
    ]


def _paper_number(
    config: Config | None, epochs: int | None, record: dict[str, Any], metric: str
) -> float | None:
    if config is None or epochs is None or epochs != config.training.epochs:
        return None
    if not _trained_as_in_the_paper(config) or not _measured_as_in_the_paper(record):
        return None
    return reported(record["protocol"], config.method.name, epochs, metric)


def _trained_as_in_the_paper(config: Config) -> bool:
    """Whether data, backbone, method and batch are those of the ImageNet recipe."""
    paper = recipe("imagenet", config.method.name)
    return (
        _is_imagenet(config.data.source)
        and config.backbone == paper.backbone
        and config.method == paper.method
        and config.training.batch_size == paper.training.batch_size
    )


def _measured_as_in_the_paper(record: dict[str, Any]) -> bool:
    """Whether it was measured on all of the paper's test images, and kNN with its weights."""
    details = record.get("details", {})
    images = details.get("test_images", 0)
    temperature = details.get("settings", {}).get("temperature", KNNSettings().temperature)
    return (
        images == TEST_IMAGES.get(record["protocol"])
        and temperature == KNNSettings().temperature
        and (record["protocol"] not in ("linear", "knn") or _is_imagenet(record["data"]))
    )


def _is_imagenet(data: str) -> bool:
    return any(IMAGENET.fullmatch(part) for part in Path(data).parts)


def as_text(rows: Sequence[ResultRow]) -> str:
    """Return columns lined up with spaces."""
    lines = [_titles(), *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_markdown(rows: Sequence[ResultRow]) -> str:
    """Return a table for a README."""
    lines = [_titles(), ["---"] * len(_titles()), *map(_cells, rows)]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def as_csv(rows: Sequence[ResultRow]) -> str:
    """Return comma-separated values at full precision."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(ResultRow._fields)
    writer.writerows(rows)
    return buffer.getvalue().rstrip("\n")


def as_json(rows: Sequence[ResultRow]) -> str:
    """Return a list of objects at full precision."""
    return json.dumps([row._asdict() for row in rows], indent=2, ensure_ascii=False)


TABLE_FORMATS: dict[str, Callable[[Sequence[ResultRow]], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "csv": as_csv,
    "json": as_json,
}


def results_table(runs: Sequence[str | Path], form: str = "text") -> str:
    """Return the results of `runs` as text, markdown, csv or json."""
    if form not in TABLE_FORMATS:
        raise InputError(f"--format {form!r} is not possible; choose {', '.join(TABLE_FORMATS)}.")
    return TABLE_FORMATS[form](collect(runs))


def _titles() -> list[str]:
    return list(ResultRow._fields)


def _cells(row: ResultRow) -> list[str]:
    return [f"{cell:.2f}" if isinstance(cell, float) else str(cell or "") for cell in row]
