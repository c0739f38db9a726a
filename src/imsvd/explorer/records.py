"""Records about the variables, units and images of an explained run, as the API returns them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from imsvd.evaluation import nearest_neighbors
from imsvd.explanations.discreteness import entropy_bits
from imsvd.explanations.retrieval import nearest_by_code
from imsvd.explorer.explained_run import ExplainedRun, NotFoundError
from imsvd.information import dead_units

By = Literal["code", "features"]
Code = NDArray[np.unsignedinteger[Any]]
Record = dict[str, Any]

PREVIEWS, MOST_DEPENDENT = 4, 5


@lru_cache(maxsize=32)
def variables(run: ExplainedRun) -> Record:
    """Summarize every variable, with the best images of its most used units."""
    return {"variables": [_summary(run, variable) for variable in range(len(run.units))]}


def _summary(run: ExplainedRun, variable: int) -> Record:
    size, start = run.units[variable], run.starts[variable]
    assigned = _assigned(run, variable)
    marginals = torch.tensor(run.encodings.marginals[start : start + size])
    confidence = run.encodings.confidence[:, variable].mean(dtype=np.float64)
    most_used = np.argsort(-assigned, kind="stable")[:PREVIEWS]
    best = run.encodings.top_images[start + most_used, 0]
    return {
        "variable": variable,
        "units": size,
        "entropy_bits": round(min(entropy_bits(assigned), math.log2(size)), 3),
        "mean_confidence": round(float(confidence), 4),
        "dead_units": int(dead_units(marginals, (size,))),
        "meaning": next(iter(_meanings(run, variable)), None),
        "preview": best[best >= 0].tolist(),
    }


def variable(run: ExplainedRun, number: int) -> Record:
    """Describe a variable: its units with their best images, its meaning, what it depends on."""
    run.require_variable(number)
    assigned = _assigned(run, number)
    units = [
        {
            "unit": unit,
            "share": round(float(assigned[unit]) / len(run.encodings.images), 5),
            "images": int(assigned[unit]),
            "mean_probability": round(float(run.encodings.marginals[run.place(number, unit)]), 6),
            "top": _top(run, run.place(number, unit)),
            "coherence": _coherence(run, run.place(number, unit)),
        }
        for unit in range(run.units[number])
    ]
    return {
        "variable": number,
        "units": units,
        "dependent": _dependent(run, number),
        "meaning": _meanings(run, number),
    }


def unit(run: ExplainedRun, variable: int, number: int, offset: int, count: int) -> Record:
    """List the images assigned to a unit, most confident first, and count their labels."""
    place = run.place(variable, number)
    confidence = run.encodings.confidence[:, variable]
    rows = np.flatnonzero(run.columns[variable] == number)
    rows = rows[np.argsort(-confidence[rows], kind="stable")]
    images = [
        {
            "image": (image := int(run.encodings.images[row])),
            "name": run.source.identity(image),
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
        "coherence": _coherence(run, place),
    }


def mutual_information(run: ExplainedRun) -> Record:
    """Return the mutual information of every pair of variables between two views, in nats."""
    if run.mutual_information is None or run.properties is None:
        raise NotFoundError(f"Not measured yet. Run `{run.command} --only joint`.")
    return {
        "size": len(run.units),
        "values": np.round(run.mutual_information.astype(np.float64), 3).tolist(),
        "floor": run.properties["mutual_information"]["floor"],
    }


def joint(run: ExplainedRun, first: int, second: int) -> Record:
    """Return the joint distribution of two variables between two views, (D_first, D_second)."""
    if run.joint is None:
        raise NotFoundError(f"Not measured yet. Run `{run.command} --only joint`.")
    for number in (first, second):
        run.require_variable(number)
        if number >= run.leading:
            raise NotFoundError(
                f"The joint matrix was saved for the first {run.leading} variables only; "
                f"variable {number} is not among them."
            )
    rows, columns = (
        slice(run.starts[number], run.starts[number] + run.units[number])
        for number in (first, second)
    )
    values = np.round(run.joint[rows, columns].astype(np.float64), 7)
    return {"rows": first, "columns": second, "values": values.tolist()}


def image_list(run: ExplainedRun, offset: int, count: int, label: str | None) -> Record:
    """List the explained images in their order, all or those of one class."""
    images = run.encodings.images
    if label:
        if run.source.labels is None or label not in run.source.classes:
            raise NotFoundError(f"There is no class {label!r} among these images.")
        images = images[run.source.labels.numpy()[images] == run.source.classes.index(label)]
    shown = [int(image) for image in images[offset : offset + count]]
    return {
        "total": len(images),
        "images": [
            {"image": image, "name": run.source.identity(image), "label": run.label(image)}
            for image in shown
        ],
    }


def image(run: ExplainedRun, number: int) -> Record:
    """Describe an image: name, label, attributes and code."""
    row = run.row(number)
    return {
        "image": number,
        "name": run.source.identity(number),
        "label": run.label(number),
        "attributes": _attributes(run, number),
        "code": code_record(run.encodings.codes[row], run.encodings.confidence[row]),
    }


def code_record(
    code: NDArray[np.integer[Any]], confidence: NDArray[np.floating[Any]]
) -> list[Record]:
    """List the unit and the confidence of every variable of a code (M,)."""
    return [
        {"variable": variable, "unit": int(unit), "confidence": round(float(sure), 4)}
        for variable, (unit, sure) in enumerate(zip(code, confidence, strict=True))
    ]


def neighbors(
    run: ExplainedRun,
    code: Code,
    features: NDArray[np.floating[Any]] | None,
    count: int,
    without: int | None = None,
) -> Record:
    """List the images that share most units with a code (M,), or with the most similar features.

    Features (width,) are compared with the saved ones. The row `without` is left out.
    """
    encodings = run.encodings
    searched = len(encodings.images if features is None else encodings.feature_rows)
    wanted = min(count + (without is not None), searched)
    if not wanted:
        raise NotFoundError("No features were saved when this run was explained.")
    if features is None:
        rows = nearest_by_code(encodings.codes, code[None], wanted)[0]
        scores = (encodings.codes[rows] == code).mean(1)
    else:
        found = nearest_neighbors(
            torch.from_numpy(encodings.features), torch.tensor(features)[None].float(), wanted
        )
        rows = encodings.feature_rows[found.indices[0].numpy()]
        scores = found.similarities[0].double().numpy()
    nearest = [
        _neighbor(run, code, row, score)
        for row, score in zip(rows, scores, strict=True)
        if row != without
    ]
    by = "code" if features is None else "features"
    return {"by": by, "searched": searched, "neighbors": nearest[:count]}


def _neighbor(run: ExplainedRun, code: Code, row: int, score: float) -> Record:
    number = int(run.encodings.images[row])
    shared = np.flatnonzero(run.encodings.codes[row] == code).tolist()
    return {
        "image": number,
        "label": run.label(number),
        "score": round(float(score), 4),
        "shared": [[variable, int(code[variable])] for variable in shared],
        "shared_count": len(shared),
    }


def saved_features(run: ExplainedRun, row: int) -> NDArray[np.float16] | None:
    """Return the features of a row of the encodings, or None if they were not saved."""
    place = int(np.searchsorted(run.encodings.feature_rows, row))
    if place == len(run.encodings.feature_rows) or run.encodings.feature_rows[place] != row:
        return None
    features: NDArray[np.float16] = run.encodings.features[place]
    return features


def _assigned(run: ExplainedRun, variable: int) -> NDArray[np.int64]:
    """Count the images assigned to each unit of a variable."""
    counts: NDArray[np.int64] = np.bincount(run.columns[variable], minlength=run.units[variable])
    return counts


def _top(run: ExplainedRun, place: int) -> list[Record]:
    images, scores = run.encodings.top_images[place], run.encodings.top_scores[place]
    return [
        {"image": int(images[k]), "score": round(float(scores[k]), 4)}
        for k in np.flatnonzero(images >= 0)
    ]


def _coherence(run: ExplainedRun, place: int) -> Record | None:
    """Return how alike and how pure the images of a unit are, if that has been measured."""
    if run.coherence is None:
        return None
    found = run.coherence["units"][place]
    numbers = {
        name: {"value": found[name], "by_chance": found[f"{name}_by_chance"]}
        for name in run.coherence["scores"]
        if found[name] is not None
    }
    return {**numbers, "judge": run.coherence["judge"]}


def _dependent(run: ExplainedRun, variable: int) -> list[Record]:
    """List the variables that share most information with one, averaged over both directions."""
    if run.mutual_information is None:
        return []
    shared = (run.mutual_information[variable] + run.mutual_information[:, variable]) / 2
    order = [int(m) for m in np.argsort(-shared, kind="stable") if m != variable]
    return [{"variable": m, "nats": round(float(shared[m]), 4)} for m in order[:MOST_DEPENDENT]]


def _meanings(run: ExplainedRun, variable: int) -> list[Record]:
    """List the attributes by how far a variable's NMI with them exceeds chance, best first."""
    if run.meaning is None:
        return []
    found = [
        {"attribute": name, "nmi": record["nmi"][variable], "baseline": record["baseline"]}
        for name, record in run.meaning["attributes"].items()
    ]
    return sorted(found, key=lambda item: item["baseline"] - item["nmi"])


def _label_counts(run: ExplainedRun, rows: NDArray[np.int64]) -> list[Record] | None:
    if run.source.labels is None:
        return None
    labels = run.source.labels.numpy()[run.encodings.images[rows]]
    numbers, counts = np.unique(labels[labels >= 0], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [{"label": run.class_name(int(numbers[k])), "count": int(counts[k])} for k in order]


def _attributes(run: ExplainedRun, number: int) -> dict[str, str]:
    found = {}
    for name, values in run.source.attributes.items():
        value = int(values[number])
        names = run.source.attribute_values.get(name, ())
        if value >= 0:
            found[name] = names[value] if value < len(names) else str(value)
    return found
