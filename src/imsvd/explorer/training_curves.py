"""The course of a training as series of numbers, each beside its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from imsvd.explorer.explained_run import ExplainedRun

_NOT_CURVES = ("epoch", "step", "seconds", "total_seconds", "peak_memory", "bounds")


def training(run: ExplainedRun) -> dict[str, Any]:
    """Every finite number of `metrics.jsonl` over the epochs."""
    records = [record for record in run.run.metrics() if _is_number(record.get("epoch"))]
    series: dict[str, list[list[float]]] = {}
    for record in records:
        for name, value in _numbers(record):
            series.setdefault(name, []).append([record["epoch"], value])
    marks = _marks(records[-1]) if records else {}
    return {
        "series": [{"name": name, "points": points} for name, points in series.items()],
        "marks": marks,
        "bounds": {
            name: [min(values.values()), max(values.values())] for name, values in marks.items()
        },
    }


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of a record and of the groups in it."""
    for name, value in record.items():
        if name in _NOT_CURVES:
            continue
        if isinstance(value, Mapping):
            yield from ((inner, number) for inner, number in value.items() if _is_number(number))
        elif _is_number(value):
            yield name, value


def _marks(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """For every term the values of its bounds by name, those of the total under "loss"."""
    found: dict[str, dict[str, float]] = {}
    for kind, values in (record.get("bounds") or {}).items():
        for name, value in values.items():
            if _is_number(value):
                found.setdefault("loss" if name == "total" else name, {})[kind] = value
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
