"""Results of runs: `results.jsonl`, and one table over runs and protocols.

results.jsonl has one line per evaluation and is only appended to. The table shows the latest result of
each kind, next to the paper's number if data, training and settings are the paper's.
"""

from __future__ import annotations

import csv
import errno
import io
import json
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
from imsvd.runs import RESULTS, RunFolder, read_results
from imsvd.settings import Settings

IMAGENET = re.compile(r"(imagenet|imagenet-?1k|ilsvrc|ilsvrc-?2012)", re.IGNORECASE)
"""Folder names that stand for all of ImageNet, not for a subset or variant."""

TEST_IMAGES = {
    "linear": 50_000,
    "knn": 50_000,
    "voc07": 4_952,
    "places205": 20_500,
    "coco": 5_000,
}
"""Number of test images in the paper's protocols; smaller data of the same form have fewer."""

PAPER_SETTINGS: dict[str, Settings] = {
    "linear": LINEAR_RECIPES["imagenet"],
    "knn": KNNSettings(),
    "voc07": SVMSettings(),
    "places205": PLACES205_SETTINGS,
}
"""The paper's settings. Results named `coco` have the paper's settings by definition."""

FREE_SETTINGS = {
    "compute",  # hardware
    "jobs",
    "query_chunk",  # memory
    "bank_chunk",
    "neighbors",  # each k is a separate metric
    "seed",  # not given in the paper
    "bad_image_limit",  # no effect on a finished evaluation
}
"""Settings that may differ from the paper's where its number is shown."""


def append_result(
    run: Path,
    protocol: str,
    metrics: Mapping[str, float],
    *,
    data: str,
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """Append one evaluation to `run`/results.jsonl, flush it to disk and return the record.

    Args:
        run: run folder.
        protocol: name of the protocol, such as "knn".
        metrics: finite numbers.
        data: the images, as the user named them.
        details: whatever else is needed to understand or repeat the evaluation, such as its settings.
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
    path = run / RESULTS
    try:
        _append(path, line.encode())
    except OSError as error:
        raise InputError(f"the result cannot be written to {path}: {error.strerror}.") from error
    return record


def _append(path: Path, line: bytes) -> None:
    """Append `line` in a single write; readers and other writers never see part of it."""
    with path.open("a+b", buffering=0) as file:
        if _ends_inside_a_line(path):
            line = b"\n" + line
        written = file.write(line)
        os.fsync(file.fileno())
    if written != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _ends_inside_a_line(path: Path) -> bool:
    """Return whether the file ends in an incomplete line, to which nothing may be appended."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class ResultRow(NamedTuple):
    """One metric of one evaluation.

    Attributes:
        encoder: "trained", "untrained", or empty if there is no run.
        paper: the paper's number in the same setting, if it reports one.
        settings: settings that distinguish the evaluation from others by the same protocol.
    """

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


class _Kind(NamedTuple):
    """Identity of an evaluation; a newer result of the same kind replaces an older one.

    Attributes:
        settings: JSON of the settings that can change a result.
    """

    protocol: str
    data: str
    untrained: bool
    epoch: int | None
    settings: str


def collect(runs: Sequence[str | Path]) -> list[ResultRow]:
    """Return the latest result of every protocol, dataset, epoch and choice of settings, by run."""
    rows = [row for run in runs for row in _rows(Path(run))]
    if not rows:
        raise InputError(
            f"there are no results in {', '.join(map(str, runs))}; "
            "evaluate a run first, such as with `imsvd evaluate knn RUN DATA`."
        )
    return rows


def _rows(run: Path) -> list[ResultRow]:
    folder = RunFolder(run)
    if not run.is_dir():
        raise InputError(f"there is no run folder {run}.")
    latest = {
        (_kind(record), metric): (record, float(value))
        for record in read_results(run)
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


def _kind(record: Mapping[str, Any]) -> _Kind:
    details = record.get("details", {})
    settings = details.get("settings") or {}
    decisive = {name: settings[name] for name in sorted(settings) if name not in FREE_SETTINGS}
    if "labels" in details:  # a subset of the images, possibly drawn by the seed
        decisive |= {"labels": details["labels"], "seed": settings.get("seed")}
    untrained = is_of_untrained(record)
    epoch = 0 if untrained else details.get("epoch")
    return _Kind(record["protocol"], record["data"], untrained, epoch, json.dumps(decisive))


def _differences(kind: _Kind, kinds: Sequence[_Kind]) -> str:
    """Name the settings in which otherwise equal evaluations differ."""
    own: dict[str, Any] = json.loads(kind.settings)
    others = [json.loads(one.settings) for one in kinds if one[:4] == kind[:4]]
    return ", ".join(
        f"{name}={json.dumps(value)}"
        for name, value in own.items()
        if any(other.get(name) != value for other in others)
    )


def is_of_untrained(record: Mapping[str, Any]) -> bool:
    """Return whether a record belongs to the encoder before training."""
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
    """Return whether data, backbone, method, views, optimizer and batch match the ImageNet recipe."""
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
    """Return whether the test images and settings are the paper's."""
    protocol, details = record["protocol"], record.get("details", {})
    return (
        details.get("test_images", 0) == TEST_IMAGES.get(protocol)
        and (protocol not in ("linear", "knn") or _is_imagenet(record["data"]))
        and as_in_the_paper(protocol, details)
    )


def as_in_the_paper(protocol: str, details: dict[str, Any]) -> bool:
    """Return whether the recorded settings are the paper's, `FREE_SETTINGS` aside.

    True for protocols whose name implies their settings, such as `coco`.
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
    """Return the rows as columns aligned with spaces."""
    lines = [[*ResultRow._fields], *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_markdown(rows: Sequence[ResultRow]) -> str:
    """Return the rows as a Markdown table."""
    lines = [[*ResultRow._fields], ["---"] * len(ResultRow._fields), *map(_cells, rows)]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def as_csv(rows: Sequence[ResultRow]) -> str:
    """Return the rows as comma-separated values at full precision."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(ResultRow._fields)
    writer.writerows(rows)
    return buffer.getvalue().rstrip("\n")


def as_json(rows: Sequence[ResultRow]) -> str:
    """Return the rows as a JSON list of objects at full precision."""
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
        raise InputError(f"there is no format {form!r}; choose {', '.join(TABLE_FORMATS)}.")
    return TABLE_FORMATS[form](collect(runs))


def _cells(row: ResultRow) -> list[str]:
    return [
        f"{cell:.2f}" if isinstance(cell, float) else "" if cell is None else str(cell)
        for cell in row
    ]
