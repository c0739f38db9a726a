"""What is told of variables and units: how they are used, what they mean, their images."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imsvd.explanations.discreteness import entropy_bits
from imsvd.explorer.explained_run import AbsentError, ExplainedRun
from imsvd.information import dead_units

PREVIEWS = 4
DEPENDENT = 5


@lru_cache(maxsize=32)
def variables(run: ExplainedRun) -> dict[str, Any]:
    """Every variable in a few numbers, with the best images of its most used units."""
    confidence = run.encodings.confidence.mean(0, dtype=np.float64)
    return {
        "variables": [
            {
                "variable": variable,
                "units": size,
                "entropy_bits": round(_entropy_bits(run, variable), 3),
                "mean_confidence": round(float(confidence[variable]), 4),
                "dead_units": _dead_units(run, variable),
                "meaning": next(iter(meanings(run, variable)), None),
                "preview": _preview(run, variable),
            }
            for variable, size in enumerate(run.units)
        ]
    }


def variable(run: ExplainedRun, number: int) -> dict[str, Any]:
    """All units of a variable with their best images, and what the variable depends on."""
    run.require_variable(number)
    taken = _taken(run, number)
    units = [
        {
            "unit": unit,
            "share": round(float(taken[unit]) / len(run.encodings.images), 5),
            "images_taking_it": int(taken[unit]),
            "mean_probability": round(float(run.encodings.marginals[run.place(number, unit)]), 6),
            "top": _top(run, run.place(number, unit)),
        }
        for unit in range(run.units[number])
    ]
    return {
        "variable": number,
        "units": units,
        "dependent": _dependent(run, number),
        "meaning": meanings(run, number),
    }


def unit(run: ExplainedRun, variable: int, number: int, offset: int, count: int) -> dict[str, Any]:
    """The images whose code takes a unit, surest first, and how their labels are distributed."""
    rows = surest_rows(run, variable, number)
    confidence = run.encodings.confidence[:, variable]
    images = [
        {
            "image": (image := int(run.encodings.images[row])),
            "score": round(float(confidence[row]), 4),
            "label": run.label(image),
        }
        for row in rows[offset : offset + count]
    ]
    return {
        "variable": variable,
        "unit": number,
        "total": len(rows),
        "images": images,
        "labels": _label_counts(run, rows),
    }


def surest_rows(run: ExplainedRun, variable: int, unit: int) -> NDArray[np.int64]:
    """Rows of the encodings that take a unit, surest first; the earlier image wins a tie."""
    run.place(variable, unit)
    rows = np.flatnonzero(run.columns[variable] == unit)
    order = np.argsort(-run.encodings.confidence[rows, variable], kind="stable")
    sorted_rows: NDArray[np.int64] = rows[order]
    return sorted_rows


def meanings(run: ExplainedRun, variable: int) -> list[dict[str, Any]]:
    """Attributes by how much a variable tells of them beyond luck, the best first."""
    if run.meaning is None:
        return []
    found = [
        {"attribute": name, "nmi": record["nmi"][variable], "baseline": record["baseline"]}
        for name, record in run.meaning["attributes"].items()
    ]
    return sorted(found, key=lambda item: item["baseline"] - item["nmi"])


def mutual_information(run: ExplainedRun) -> dict[str, Any]:
    """What every two variables share between two views, nats."""
    if run.mutual_information is None or run.properties is None:
        raise AbsentError(_without_joint(run))
    return {
        "size": len(run.units),
        "values": np.round(run.mutual_information.astype(np.float64), 3).tolist(),
        "floor": run.properties["mutual_information"]["floor"],
    }


def joint(run: ExplainedRun, first: int, second: int) -> dict[str, Any]:
    """The joint distribution of two variables between two views, (D_first, D_second)."""
    if run.joint is None:
        raise AbsentError(_without_joint(run))
    for number in (first, second):
        run.require_variable(number)
        if number >= run.leading:
            raise AbsentError(
                f"The joint matrix was kept for the first {run.leading} variables only; "
                f"variable {number} is not among them."
            )
    rows, columns = (
        slice(run.starts[number], run.starts[number] + run.units[number])
        for number in (first, second)
    )
    values = np.round(run.joint[rows, columns].astype(np.float64), 7)
    return {"rows": first, "columns": second, "values": values.tolist()}


def _without_joint(run: ExplainedRun) -> str:
    return (
        "The joint matrix has not been measured, or not been kept; "
        f"run `imsvd explain {run.run.path} {run.summary['data']} --only joint`."
    )


def _taken(run: ExplainedRun, variable: int) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.bincount(run.columns[variable], minlength=run.units[variable])
    return counts


def _entropy_bits(run: ExplainedRun, variable: int) -> float:
    return min(entropy_bits(_taken(run, variable)), math.log2(run.units[variable]))


def _marginals(run: ExplainedRun, variable: int) -> NDArray[np.float64]:
    start = run.starts[variable]
    return run.encodings.marginals[start : start + run.units[variable]]


def _dead_units(run: ExplainedRun, variable: int) -> int:
    return int(dead_units(torch.tensor(_marginals(run, variable)), (run.units[variable],)))


def _preview(run: ExplainedRun, variable: int) -> list[int]:
    used = np.argsort(-_taken(run, variable), kind="stable")[:PREVIEWS]
    best = run.encodings.top_images[run.starts[variable] + used, 0]
    return [int(image) for image in best if image >= 0]


def _top(run: ExplainedRun, place: int) -> list[dict[str, Any]]:
    found = zip(run.encodings.top_images[place], run.encodings.top_scores[place], strict=True)
    return [
        {"image": int(image), "score": round(float(score), 4)}
        for image, score in found
        if image >= 0
    ]


def _dependent(run: ExplainedRun, variable: int) -> list[dict[str, Any]]:
    """The variables that share most with one, averaged over both directions."""
    if run.mutual_information is None:
        return []
    shared = (run.mutual_information[variable] + run.mutual_information[:, variable]) / 2
    order = [int(m) for m in np.argsort(-shared, kind="stable") if m != variable]
    return [{"variable": m, "nats": round(float(shared[m]), 4)} for m in order[:DEPENDENT]]


def _label_counts(run: ExplainedRun, rows: NDArray[np.int64]) -> list[dict[str, Any]] | None:
    if run.source.labels is None:
        return None
    labels = run.source.labels.numpy()[run.encodings.images[rows]]
    numbers, counts = np.unique(labels[labels >= 0], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [{"label": run.class_name(int(numbers[k])), "count": int(counts[k])} for k in order]
