"""Two runs side by side: their headline numbers, their training, and what their codes share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imsvd.evaluation.results import read_results
from imsvd.explanations.subject import evenly_spaced
from imsvd.explorer.explained_run import ExplainedRun
from imsvd.explorer.training_curves import training

MOST_IMAGES = 20_000
_FEWEST_IMAGES = 2
_DRAWN = ("embeddings", "galleries", "grad_cam")
"""Parts of an explanation that are to be looked at; their numbers say how much was drawn."""


def compare(first: ExplainedRun, second: ExplainedRun) -> dict[str, Any]:
    """Everything about two runs that can be put side by side."""
    left, right = dict(_headline(first)), dict(_headline(second))
    names = [*left, *(name for name in right if name not in left)]
    return {
        "rows": [
            {"group": group, "name": name, "first": left.get(key), "second": right.get(key)}
            for key in names
            for group, name in [key]
        ],
        "training": {"first": training(first), "second": training(second)},
        "agreement": agreement(first, second),
    }


def _headline(run: ExplainedRun) -> Iterator[tuple[tuple[str, str], float | str]]:
    """(group, name) and value of everything that a run has been measured by."""
    yield ("run", "method"), run.description.method
    yield ("run", "variables"), len(run.units)
    yield ("run", "units"), sum(run.units)
    yield ("run", "explained images"), len(run.encodings.images)
    metrics = run.run.metrics()
    if metrics:
        yield ("run", "epochs"), metrics[-1]["epoch"]
    for row in run.summary["parts"].get("joint", {}).get("properties", ()):
        yield ("theorem", row["name"].replace("_", " ")), row["measured"]
    for part, record in run.summary["parts"].items():
        for name, value in record.items():
            if part not in _DRAWN and "images" not in name and _can_be_shown(value):
                yield (part.replace("_", " "), name.replace("_", " ")), value
    for result in read_results(run.run.path):
        yield from _result(result)


def _result(record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    """The numbers of one evaluation; a later one of the same name replaces it."""
    # Where the images lay when they were evaluated would set the same ones apart.
    group = f"{record.get('protocol')} on {Path(str(record.get('data'))).name}"
    for name, value in record.get("metrics", {}).items():
        if _can_be_shown(value):
            yield (group, name.replace("_", " ")), value


def _can_be_shown(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int | str)


@lru_cache(maxsize=16)
def agreement(first: ExplainedRun, second: ExplainedRun) -> dict[str, Any]:
    """What the variables of two runs tell of one another on the images that both have seen."""
    rows = common_rows(first, second)
    if rows.shape[1] < _FEWEST_IMAGES:
        return {"common_images": 0, "mutual_information": None, "floor": None}
    sample = rows[:, evenly_spaced(rows.shape[1], MOST_IMAGES)]
    table = code_information(
        first.encodings.codes[sample[0]],
        second.encodings.codes[sample[1]],
        (first.units, second.units),
    )
    mean_cells = (np.mean(first.units) - 1) * (np.mean(second.units) - 1)
    return {
        "common_images": rows.shape[1],
        "mutual_information": np.round(table, 3).tolist(),
        "floor": float(mean_cells / (2 * sample.shape[1])),
    }


def common_rows(first: ExplainedRun, second: ExplainedRun) -> NDArray[np.int64]:
    """Rows of both encodings that are of the same image by name, (2, n)."""
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
    """Mutual information in nats of every variable of one code with every one of another."""
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
