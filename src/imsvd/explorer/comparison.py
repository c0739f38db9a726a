"""Training curves of a run, and two runs side by side: numbers, curves, and what their codes share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imsvd.code_measures import matched_units
from imsvd.explanations import PARTS
from imsvd.explanations.subject import evenly_spaced
from imsvd.explorer.explained_run import ExplainedRun
from imsvd.runs import read_results

MAX_IMAGES = 20_000
_NOT_CURVES = ("epoch", "step", "seconds", "total_seconds", "peak_memory", "bounds")


def training(run: ExplainedRun) -> dict[str, Any]:
    """Return every finite number of `metrics.jsonl` as a series over epochs, with its bounds."""
    metrics = [record for record in run.run.metrics() if _is_number(record.get("epoch"))]
    series: dict[str, list[list[float]]] = {}
    for record in metrics:
        for name, value in _numbers(record):
            series.setdefault(name, []).append([record["epoch"], value])
    return {
        "series": [{"name": name, "points": points} for name, points in series.items()],
        "bounds": _bounds(metrics[-1]) if metrics else {},
    }


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield names and values of a record and of the groups in it."""
    for name, value in record.items():
        if name in _NOT_CURVES:
            continue
        if isinstance(value, Mapping):
            yield from ((inner, number) for inner, number in value.items() if _is_number(number))
        elif _is_number(value):
            yield name, value


def _bounds(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the bounds of every term by name; those of the total are under "loss"."""
    found: dict[str, dict[str, float]] = {}
    for kind, values in (record.get("bounds") or {}).items():
        for name, value in values.items():
            if _is_number(value):
                found.setdefault("loss" if name == "total" else name, {})[kind] = value
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def compare(first: ExplainedRun, second: ExplainedRun) -> dict[str, Any]:
    """Return the numbers, training curves and shared information of two runs."""
    left, right = dict(_headline(first)), dict(_headline(second))
    return {
        "rows": [
            {"group": key[0], "name": key[1], "first": left.get(key), "second": right.get(key)}
            for key in left | right
        ],
        "training": {"first": training(first), "second": training(second)},
        "agreement": agreement(first, second),
    }


def _headline(run: ExplainedRun) -> Iterator[tuple[tuple[str, str], float | str]]:
    """Yield (group, name) and value of everything measured about a run."""
    yield ("run", "method"), run.description.method
    yield ("run", "variables"), len(run.units)
    yield ("run", "units"), sum(run.units)
    yield ("run", "explained images"), len(run.encodings.images)
    metrics = run.run.metrics()
    if metrics:
        yield ("run", "epochs"), metrics[-1]["epoch"]
    for name, record in run.summary["parts"].items():
        # The numbers of parts without tiles tell how much was drawn, not how good the run is.
        if name in PARTS and PARTS[name].tiles(record):
            yield from _part(PARTS[name].title, record)
    for result in read_results(run.run.path):
        # The name only: the same data may have been in another folder for the other run.
        group = f"{result.get('protocol')} on {Path(str(result.get('data'))).name}"
        for name, value in result.get("metrics", {}).items():
            if _can_be_shown(value):
                yield (group, name.replace("_", " ")), value


def _part(title: str, record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float | str]]:
    for row in record.get("properties", ()):
        yield (title, row["name"].replace("_", " ")), row["measured"]
    for name, value in record.items():
        if "images" not in name and _can_be_shown(value):
            yield (title, name.replace("_", " ")), value


def _can_be_shown(value: object) -> bool:
    return isinstance(value, str | bool) or _is_number(value)


@lru_cache(maxsize=16)
def agreement(first: ExplainedRun, second: ExplainedRun) -> dict[str, Any]:
    """Return what two runs' codes share on the images common to both: information, and units."""
    rows = common_rows(first, second)
    if rows.shape[1] < 2:
        return {
            "common_images": 0,
            "mutual_information": None,
            "floor": None,
            "matched_units": None,
        }
    sample = rows[:, evenly_spaced(rows.shape[1], MAX_IMAGES)]
    codes = first.encodings.codes[sample[0]], second.encodings.codes[sample[1]]
    table = code_information(*codes, (first.units, second.units))
    matching = matched_units(*codes, first.units, second.units)
    mean_cells = (np.mean(first.units) - 1) * (np.mean(second.units) - 1)
    return {
        "common_images": rows.shape[1],
        "mutual_information": np.round(table, 3).tolist(),
        "floor": float(mean_cells / (2 * sample.shape[1])),
        "matched_units": {"share": matching.share, "mean_jaccard": matching.mean_jaccard},
    }


def common_rows(first: ExplainedRun, second: ExplainedRun) -> NDArray[np.int64]:
    """Return the rows of both encodings that belong to images of the same name, (2, n)."""
    places = {
        second.source.identity(int(image)): row for row, image in enumerate(second.encodings.images)
    }
    found = [
        (row, places[name])
        for row, image in enumerate(first.encodings.images)
        if (name := first.source.identity(int(image))) in places
    ]
    return np.array(found, dtype=np.int64).reshape(-1, 2).T


def code_information(
    first: NDArray[np.integer[Any]],
    second: NDArray[np.integer[Any]],
    units: tuple[tuple[int, ...], tuple[int, ...]],
) -> NDArray[np.float64]:
    """Return the mutual information, in nats, of every variable of one code with every one of another."""
    left, right = (np.ascontiguousarray(codes.T).astype(np.int64) for codes in (first, second))
    single = [[_entropy(np.bincount(column)) for column in columns] for columns in (left, right)]
    shared = np.empty((len(left), len(right)))
    for a, column in enumerate(left):
        for b, other in enumerate(right):
            together = _entropy(np.bincount(column * units[1][b] + other))
            shared[a, b] = max(0.0, single[0][a] + single[1][b] - together)
    return shared


def _entropy(counts: NDArray[np.integer[Any]]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
