"""What is told of images: which there are, their codes, and which others are like them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from imsvd.evaluation import nearest_neighbors
from imsvd.explanations.retrieval import nearest_by_code
from imsvd.explorer.explained_run import AbsentError, ExplainedRun

By = Literal["code", "features"]
Code = NDArray[np.unsignedinteger[Any]]


def image_list(run: ExplainedRun, offset: int, count: int, label: str | None) -> dict[str, Any]:
    """The explained images in their order, all or those of one class."""
    images = run.encodings.images
    if label:
        images = images[_has_label(run, label)]
    shown = [int(image) for image in images[offset : offset + count]]
    return {
        "total": len(images),
        "images": [{"image": image, "label": run.label(image)} for image in shown],
    }


def _has_label(run: ExplainedRun, label: str) -> NDArray[np.bool_]:
    if run.source.labels is None or label not in run.source.classes:
        raise AbsentError(f"There is no class {label!r} among these images.")
    labels = run.source.labels.numpy()[run.encodings.images]
    wanted: NDArray[np.bool_] = labels == run.source.classes.index(label)
    return wanted


def image(run: ExplainedRun, number: int) -> dict[str, Any]:
    """The name of an image, what is known of it, and its code."""
    row = run.row(number)
    return {
        "image": number,
        "name": run.source.identity(number),
        "label": run.label(number),
        "attributes": _attributes(run, number),
        "code": code_record(run.encodings.codes[row], run.encodings.confidence[row]),
    }


def _attributes(run: ExplainedRun, number: int) -> dict[str, str]:
    found = {}
    for name, values in run.source.attributes.items():
        value = int(values[number])
        names = run.source.attribute_values.get(name, ())
        if value >= 0:
            found[name] = names[value] if value < len(names) else str(value)
    return found


def code_record(
    code: NDArray[np.integer[Any]], confidence: NDArray[np.floating[Any]]
) -> list[dict[str, Any]]:
    """A code (M,) and how sure each of its units is, variable by variable."""
    return [
        {"variable": variable, "unit": int(unit), "confidence": round(float(sure), 4)}
        for variable, (unit, sure) in enumerate(zip(code, confidence, strict=True))
    ]


def neighbors_by_code(
    run: ExplainedRun, code: Code, count: int, without: int | None = None
) -> dict[str, Any]:
    """The images that share most units with a code (M,); `without` is a row to leave out."""
    total = len(run.encodings.images)
    wanted = min(count + (without is not None), total)
    rows = nearest_by_code(run.encodings.codes, code[None], wanted)[0]
    rows = rows[rows != (-1 if without is None else without)][:count]
    scores = (run.encodings.codes[rows] == code).mean(1)
    return _answer(run, "code", code, rows, scores, total)


def neighbors_by_features(
    run: ExplainedRun,
    features: NDArray[np.floating[Any]],
    code: Code,
    count: int,
    without: int | None = None,
) -> dict[str, Any]:
    """The images with the most similar features, (width,), among those whose features were kept."""
    kept = run.encodings.feature_rows
    wanted = min(count + (without is not None), len(kept))
    if not wanted:
        raise AbsentError("No features were kept when this run was explained.")
    found = nearest_neighbors(
        torch.from_numpy(run.encodings.features), torch.tensor(features)[None].float(), wanted
    )
    rows, scores = kept[found.indices[0].numpy()], found.similarities[0].double().numpy()
    others = rows != (-1 if without is None else without)
    return _answer(run, "features", code, rows[others][:count], scores[others][:count], len(kept))


def kept_features(run: ExplainedRun, row: int) -> NDArray[np.float16] | None:
    """The features of a row of the encodings, if they were kept."""
    place = int(np.searchsorted(run.encodings.feature_rows, row))
    if place == len(run.encodings.feature_rows) or run.encodings.feature_rows[place] != row:
        return None
    kept: NDArray[np.float16] = run.encodings.features[place]
    return kept


def _answer(
    run: ExplainedRun,
    by: By,
    code: Code,
    rows: NDArray[np.int64],
    scores: NDArray[np.floating[Any]],
    searched: int,
) -> dict[str, Any]:
    found = []
    for row, score in zip(rows, scores, strict=True):
        number = int(run.encodings.images[row])
        agreeing = np.flatnonzero(run.encodings.codes[row] == code).tolist()
        found.append(
            {
                "image": number,
                "label": run.label(number),
                "score": round(float(score), 4),
                "shared": [[variable, int(code[variable])] for variable in agreeing],
                "shared_count": len(agreeing),
            }
        )
    return {"by": by, "searched": searched, "neighbors": found}
