"""Similar images by the number of units they share, against cosine similarity of features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imsvd.datasets import ImageSource
from imsvd.evaluation import nearest_neighbors
from imsvd.explanations.encodings import Encodings
from imsvd.explanations.subject import Progress, evenly_spaced

QUERIES = 1000
NEIGHBORS = (1, 10, 100)
_CHUNK = 32
_EXAMPLES = 8
_EXAMPLE_NEIGHBORS = 5
_AGREEING_LISTED = 20

Codes = NDArray[np.integer[Any]]


def nearest_by_code(bank: Codes, queries: Codes, count: int) -> NDArray[np.int64]:
    """The rows of `bank` (n, M) that share most units with each query (m, M): (m, count).

    Most shared units first; the earlier row wins a tie.
    """
    found = np.empty((len(queries), count), dtype=np.int64)
    backwards = np.arange(len(bank) - 1, -1, -1)
    columns = np.ascontiguousarray(bank.T)
    for start in range(0, len(queries), _CHUNK):
        part = queries[start : start + _CHUNK]
        shared = np.zeros((len(part), len(bank)), np.uint8 if len(columns) < 256 else np.uint16)
        for column, units in zip(columns, part.T, strict=True):
            shared += units[:, None] == column
        # One unique number per image, which ranks by shared units and then by position.
        keys = torch.from_numpy(shared.astype(np.int64) * len(bank) + backwards)
        found[start : start + len(part)] = keys.topk(count, dim=1).indices.numpy()
    return found


def retrieval(
    encodings: Encodings, source: ImageSource, progress: Progress | None = None
) -> dict[str, Any]:
    """Recall and speed of both ways of searching, and examples with the units that agree."""
    rows = encodings.feature_rows
    if len(rows) < 2:
        return {"images": len(rows), "queries": 0}
    codes = encodings.codes[rows]
    features = torch.from_numpy(encodings.features).float()
    labels = None if source.labels is None else source.labels.numpy()[encodings.images[rows]]
    queries = np.array(evenly_spaced(len(rows), QUERIES))
    depth = min(max(NEIGHBORS), len(rows) - 1)
    by_code, by_feature, seconds = _search_both(codes, features, queries, depth, progress)
    record: dict[str, Any] = {
        "images": len(rows),
        "queries": len(queries),
        "shared_with_cosine_at_10": _overlap(by_code, by_feature, min(10, depth)),
    }
    for name, found in (("code", by_code), ("cosine", by_feature)):
        record[name] = {"queries_per_second": len(queries) / seconds[name]}
        if labels is not None:
            record[name] |= label_scores(found, labels, queries)
    record["examples"] = _examples(encodings, source, queries, by_code)
    return record


def _search_both(
    codes: Codes,
    features: torch.Tensor,
    queries: NDArray[np.int64],
    depth: int,
    progress: Progress | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, float]]:
    """Neighbors by code and by cosine, (queries, depth) each, and the seconds each took."""
    parts: list[NDArray[np.int64]] = []
    if progress is not None:
        progress(0, len(queries))
    started = time.perf_counter()
    for start in range(0, len(queries), _CHUNK):
        part = queries[start : start + _CHUNK]
        parts.append(nearest_by_code(codes, codes[part], depth + 1))
        if progress is not None:
            progress(start + len(part), len(queries))
    by_code = without_self(np.concatenate(parts), queries)
    halfway = time.perf_counter()
    found = nearest_neighbors(features, features[queries], depth + 1).indices.numpy()
    by_feature = without_self(found, queries)
    seconds = {"code": halfway - started, "cosine": time.perf_counter() - halfway}
    return by_code, by_feature, seconds


def without_self(found: NDArray[np.int64], queries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Drop each query from its own neighbors (m, k), or the last where it is not among them."""
    own = found == queries[:, None]
    own[~own.any(1), -1] = True
    kept: NDArray[np.int64] = found[~own].reshape(len(found), -1)
    return kept


def label_scores(
    found: NDArray[np.int64], labels: NDArray[np.int64], queries: NDArray[np.int64]
) -> dict[str, float]:
    """Recall@k, whether any of k neighbors has the query's label, and the share that have it."""
    same = labels[found] == labels[queries, None]
    scores: dict[str, float] = {}
    for k in NEIGHBORS:
        if k <= found.shape[1]:
            scores[f"recall_at_{k}"] = float(same[:, :k].any(1).mean())
            scores[f"precision_at_{k}"] = float(same[:, :k].mean())
    return scores


def _overlap(first: NDArray[np.int64], second: NDArray[np.int64], k: int) -> float:
    """Mean share of the k nearest that both ways find."""
    pairs = zip(first[:, :k], second[:, :k], strict=True)
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in pairs]))


def _examples(
    encodings: Encodings,
    source: ImageSource,
    queries: NDArray[np.int64],
    by_code: NDArray[np.int64],
) -> list[dict[str, Any]]:
    rows = encodings.feature_rows
    chosen = evenly_spaced(len(queries), _EXAMPLES)
    return [
        {
            **_named(encodings, source, int(rows[queries[number]])),
            "neighbors": [
                {
                    **_named(encodings, source, int(rows[neighbor])),
                    **agreeing_units(
                        encodings.codes[rows[queries[number]]], encodings.codes[rows[neighbor]]
                    ),
                }
                for neighbor in by_code[number, :_EXAMPLE_NEIGHBORS]
            ],
        }
        for number in chosen
    ]


def _named(encodings: Encodings, source: ImageSource, row: int) -> dict[str, Any]:
    index = int(encodings.images[row])
    return {"index": index, "path": source.identity(index)}


def agreeing_units(first: Codes, second: Codes) -> dict[str, Any]:
    """How many variables of two codes (M,) agree, and the first of them as [variable, unit]."""
    agreeing: Sequence[int] = np.flatnonzero(first == second).tolist()
    return {
        "shared_units": len(agreeing),
        "units": [[variable, int(first[variable])] for variable in agreeing[:_AGREEING_LISTED]],
    }
