"""`results.jsonl` of a run: one line per evaluation, only ever appended to."""

from __future__ import annotations

import csv
import errno
import io
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from imsvd.config import Config
from imsvd.errors import InputError
from imsvd.evaluation.classification import LINEAR_RECIPES, PLACES205_SETTINGS
from imsvd.evaluation.knn import KNNSettings
from imsvd.evaluation.voc07 import SVMSettings
from imsvd.paper_numbers import reported
from imsvd.recipes import recipe
from imsvd.runs import RunFolder
from imsvd.settings import Settings

_logger = logging.getLogger(__name__)

_FILE_NAME = "results.jsonl"


def append_result(
    run: Path,
    protocol: str,
    metrics: Mapping[str, float],
    *,
    data: str,
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """Append one evaluation to `run`/results.jsonl, on disk when this returns.

    Args:
        run: the run folder.
        protocol: what was measured, such as "knn".
        metrics: the numbers; finite.
        data: what it was measured on, as the user named it.
        details: what else is needed to understand or repeat it, such as the settings.

    Returns:
        The record as written, with the time and the version of this package.
    """
    record = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version("imsvd"),
        "protocol": protocol,
        "data": data,
        "metrics": dict(metrics),
        "details": dict(details),
    }
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    path = run / _FILE_NAME
    try:
        _append(path, line.encode())
    except OSError as error:
        raise InputError(f"The result cannot be written to {path}: {error.strerror}.") from error
    return record


def read_results(run: Path) -> list[dict[str, Any]]:
    """All evaluations recorded in `run`, oldest first; empty if there are none.

    A line that an interrupted write left incomplete is passed over, with a warning in the log.
    """
    path = run / _FILE_NAME
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif line.strip():
            _logger.warning("%s, line %d is incomplete and was passed over", path, number)
    return records


def _append(path: Path, line: bytes) -> None:
    """Append `line` in a single write, so that a reader or second writer never sees a part."""
    with path.open("a+b", buffering=0) as file:
        if _ends_inside_a_line(path):
            line = b"\n" + line
        written = file.write(line)
        os.fsync(file.fileno())
    if written != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _ends_inside_a_line(path: Path) -> bool:
    """Whether an interrupted write left a last line that the next one must not join."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


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

PAPER_SETTINGS: dict[str, Settings] = {
    "linear": LINEAR_RECIPES["imagenet"],
    "knn": KNNSettings(),
    "voc07": SVMSettings(),
    "places205": PLACES205_SETTINGS,
}
"""The protocols at full scale. Of COCO's, results are filed under `coco` only where all is the paper's."""

FREE_SETTINGS = {
    "compute",  # where it ran
    "jobs",
    "query_chunk",  # how much memory it took
    "bank_chunk",
    "neighbors",  # each k has a number of its own
    "seed",  # the paper names none
    "bad_image_limit",  # what it would have stopped at
}
"""Settings that may differ from the paper's beside the paper's number."""


class ResultRow(NamedTuple):
    """One number of one evaluation; `encoder` is trained or untrained, or empty without a run."""

    run: str
    method: str
    backbone: str
    encoder: str
    epochs: int | None
    protocol: str
    data: str
    metric: str
    value: float
    paper: float | None
    settings: str = ""
    """What tells it from other evaluations by the same protocol on the same data, if there are any."""


class _Evaluated(NamedTuple):
    """What a newer number must share with an older one to take its place."""

    protocol: str
    data: str
    untrained: bool
    epoch: int | None
    settings: str
    """As JSON, without those that cannot change a result."""


def collect(runs: Sequence[str | Path]) -> list[ResultRow]:
    """Return the latest result of every protocol, dataset, epoch and choice of settings, run by run."""
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
    latest = {
        (_evaluated(record), metric): (record, float(value))
        for record in _without_repeated(read_results(run))
        for metric, value in record["metrics"].items()
    }
    config = folder.config() if folder.exists() else None
    kinds = list(dict.fromkeys(kind for kind, _ in latest))
    return [
        ResultRow(
            str(run),
            config.method.name if config else "",
            config.backbone.name if config else "",
            ("untrained" if kind.untrained else "trained") if config else "",
            kind.epoch,
            kind.protocol,
            kind.data,
            metric,
            value,
            None if kind.untrained else _paper_number(config, kind.epoch, record, metric),
            _differences(kind, kinds),
        )
        for (kind, metric), (record, value) in latest.items()
    ]


def _without_repeated(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what was recorded again because the first record did not say the epoch."""
    details = [record.get("details", {}) for record in records]
    told = {one.get("evaluation") for one in details if "epoch" in one} - {None}
    return [
        record
        for record, one in zip(records, details, strict=True)
        if "epoch" in one or one.get("evaluation") not in told
    ]


def _evaluated(record: Mapping[str, Any]) -> _Evaluated:
    details = record.get("details", {})
    settings = details.get("settings") or {}
    telling = {name: settings[name] for name in sorted(settings) if name not in FREE_SETTINGS}
    if "labels" in details:  # of a part of the images, which the seed may have drawn
        telling |= {"labels": details["labels"], "seed": settings.get("seed")}
    untrained = is_of_untrained(record)
    epoch = 0 if untrained else details.get("epoch")
    return _Evaluated(record["protocol"], record["data"], untrained, epoch, json.dumps(telling))


def _differences(kind: _Evaluated, kinds: Sequence[_Evaluated]) -> str:
    """Name the settings in which evaluations that are otherwise alike differ."""
    own: dict[str, Any] = json.loads(kind.settings)
    others = [json.loads(one.settings) for one in kinds if one[:4] == kind[:4]]
    return ", ".join(
        f"{name}={json.dumps(value)}"
        for name, value in own.items()
        if any(other.get(name) != value for other in others)
    )


def is_of_untrained(record: Mapping[str, Any]) -> bool:
    """Whether a line of results.jsonl is of the encoder before training."""
    return bool(record.get("details", {}).get("encoder") == "untrained")


def _paper_number(
    config: Config | None, epochs: int | None, record: dict[str, Any], metric: str
) -> float | None:
    if config is None or epochs is None or epochs != config.training.epochs:
        return None
    if not _trained_as_in_the_paper(config) or not _measured_as_in_the_paper(record):
        return None
    return reported(record["protocol"], config.method.name, epochs, metric)


def _trained_as_in_the_paper(config: Config) -> bool:
    """Whether data, backbone, method, views, optimizer and batch are those of the ImageNet recipe."""
    paper = recipe("imagenet", config.method.name)
    return (
        _is_imagenet(config.data.source)
        and config.backbone == paper.backbone
        and config.method == paper.method
        and config.views == paper.views
        and config.optimizer == paper.optimizer
        and config.training.batch_size == paper.training.batch_size
    )


def _measured_as_in_the_paper(record: dict[str, Any]) -> bool:
    """Whether it was measured on all of the paper's test images and with its settings."""
    protocol, details = record["protocol"], record.get("details", {})
    return (
        details.get("test_images", 0) == TEST_IMAGES.get(protocol)
        and (protocol not in ("linear", "knn") or _is_imagenet(record["data"]))
        and as_in_the_paper(protocol, details)
    )


def as_in_the_paper(protocol: str, details: dict[str, Any]) -> bool:
    """Whether the recorded settings are the paper's, but for those that cannot change a result.

    A protocol whose name says its settings, such as COCO's, has no others.
    """
    if protocol not in PAPER_SETTINGS:
        return True
    paper = PAPER_SETTINGS[protocol]
    try:
        measured = type(paper).model_validate(details.get("settings"))
    except ValidationError:
        return False
    return measured.model_dump(exclude=FREE_SETTINGS) == paper.model_dump(exclude=FREE_SETTINGS)


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
    return [
        f"{cell:.2f}" if isinstance(cell, float) else "" if cell is None else str(cell)
        for cell in row
    ]
