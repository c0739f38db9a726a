"""Similar images by the number of units they share, compared with cosine similarity of features."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imsvd.datasets import ImageSource
from imsvd.evaluation import nearest_neighbors
from imsvd.explanations.encodings import Encodings, EncodingsCollector
from imsvd.explanations.galleries import shown_units, unit_id
from imsvd.explanations.sections import (
    Findings,
    Html,
    Part,
    Section,
    Tile,
    element,
    join,
    link,
    named,
    paragraph,
    percent,
    table,
    write_json,
)
from imsvd.explanations.subject import Progress, Subject, evenly_spaced

QUERIES = 1000
NEIGHBORS = (1, 10, 100)
_CHUNK = 32
_EXAMPLES = 8
_EXAMPLE_NEIGHBORS = 5
_AGREEING_LISTED = 20

Codes = NDArray[np.integer[Any]]


def nearest_by_code(bank: Codes, queries: Codes, count: int) -> NDArray[np.int64]:
    """Return the rows of `bank` (n, M) that share most units with each query (m, M): (m, count).

    The earlier row wins a tie.
    """
    found = np.empty((len(queries), count), dtype=np.int64)
    backwards = np.arange(len(bank) - 1, -1, -1)
    columns = np.ascontiguousarray(bank.T)
    for start in range(0, len(queries), _CHUNK):
        part = queries[start : start + _CHUNK]
        shared = np.zeros((len(part), len(bank)), np.uint8 if len(columns) < 256 else np.uint16)
        for column, units in zip(columns, part.T, strict=True):
            shared += units[:, None] == column
        # One unique number per image, which sorts by shared units, then by position.
        keys = torch.from_numpy(shared.astype(np.int64) * len(bank) + backwards)
        found[start : start + len(part)] = keys.topk(count, dim=1).indices.numpy()
    return found


def retrieval(
    encodings: Encodings, source: ImageSource, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure recall and speed of both searches, and list examples with their shared units."""
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
    """Return neighbors by code and by cosine, (queries, depth) each, and the seconds taken."""
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
    """Drop each query from its own neighbors (m, k), or the last one if it is not among them."""
    own = found == queries[:, None]
    own[~own.any(1), -1] = True
    kept: NDArray[np.int64] = found[~own].reshape(len(found), -1)
    return kept


def label_scores(
    found: NDArray[np.int64], labels: NDArray[np.int64], queries: NDArray[np.int64]
) -> dict[str, float]:
    """Return recall@k (any of k neighbors has the query's label) and precision@k (the share)."""
    same = labels[found] == labels[queries, None]
    scores: dict[str, float] = {}
    for k in NEIGHBORS:
        if k <= found.shape[1]:
            scores[f"recall_at_{k}"] = float(same[:, :k].any(1).mean())
            scores[f"precision_at_{k}"] = float(same[:, :k].mean())
    return scores


def _overlap(first: NDArray[np.int64], second: NDArray[np.int64], k: int) -> float:
    """Return the mean share of the k nearest neighbors that both searches find."""
    pairs = zip(first[:, :k], second[:, :k], strict=True)
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in pairs]))


def _examples(
    encodings: Encodings,
    source: ImageSource,
    queries: NDArray[np.int64],
    by_code: NDArray[np.int64],
) -> list[dict[str, Any]]:
    def named_image(row: int) -> dict[str, Any]:
        index = int(encodings.images[row])
        return {"index": index, "path": source.identity(index)}

    rows, examples = encodings.feature_rows, []
    for number in evenly_spaced(len(queries), _EXAMPLES):
        query = rows[queries[number]]
        neighbors = [
            named_image(row) | agreeing_units(encodings.codes[query], encodings.codes[row])
            for row in rows[by_code[number, :_EXAMPLE_NEIGHBORS]]
        ]
        examples.append(named_image(query) | {"neighbors": neighbors})
    return examples


def agreeing_units(first: Codes, second: Codes) -> dict[str, Any]:
    """Count the variables on which two codes (M,) agree, and list the first as [variable, unit]."""
    agreeing: Sequence[int] = np.flatnonzero(first == second).tolist()
    return {
        "shared_units": len(agreeing),
        "units": [[variable, int(first[variable])] for variable in agreeing[:_AGREEING_LISTED]],
    }


def _make(subject: Subject, encodings: Encodings, progress: Progress) -> dict[str, Any]:
    record = retrieval(encodings, subject.source, progress)
    write_json(subject, "retrieval.json", record)
    return {
        f"{way}_{name}": value
        for way in ("code", "cosine")
        for name, value in record.get(way, {}).items()
        if name in ("recall_at_1", "recall_at_10", "precision_at_10", "queries_per_second")
    }


def _section(findings: Findings) -> Section | None:
    record = findings.record("retrieval", "retrieval.json")
    if record is None or not record["queries"]:
        return None
    columns = [name for name in record["code"] if name != "queries_per_second"]
    rows = [
        (
            title,
            *(percent(record[way][name]) for name in columns),
            f"{record[way]['queries_per_second']:,.0f}",
        )
        for way, title in (("code", "shared units"), ("cosine", "cosine of features"))
    ]
    gallery = {(unit.variable, unit.unit) for unit in shown_units(findings)}
    examples = [_query(findings, example, gallery) for example in record["examples"]]
    return [
        paragraph(
            f"For each of {record['queries']:,} query images, all others of {record['images']:,} "
            "images are ranked by similarity. Of the ten nearest neighbors, both rankings have "
            f"{percent(record['shared_with_cosine_at_10'])} in common."
        ),
        table(
            "Share with the query's label, and speed",
            ("ranked by", *(name.replace("_at_", "@") for name in columns), "queries / s"),
            rows,
        ),
        element("h3", "Examples"),
        paragraph("The query comes first, followed by the images that share most units with it."),
        element("div", *examples, class_="queries"),
    ]


def _query(findings: Findings, example: Mapping[str, Any], gallery: set[tuple[int, int]]) -> Html:
    variables = len(findings.subject.units)
    answers = [_answer(findings, example, "query")]
    answers += [
        _answer(findings, neighbor, f"{neighbor['shared_units']} of {variables} units")
        for neighbor in example["neighbors"]
    ]
    lists = [
        element("li", named(neighbor["path"]), ": ", _unit_list(neighbor, gallery))
        for neighbor in example["neighbors"]
    ]
    return element(
        "div",
        element("ul", *answers, class_="answers"),
        element(
            "details",
            element("summary", "Units shared with ", named(example["path"])),
            element("p", "Listed as variable/unit:", class_="note"),
            element("ul", *lists, class_="note"),
        ),
    )


def _answer(findings: Findings, found: Mapping[str, Any], note: str) -> Html:
    name = findings.label(int(found["index"])) or str(found["path"])
    shown = findings.thumbnail(int(found["index"]), f"{name}: {note}")
    return element("li", shown, named(name), element("small", note))


def _unit_list(neighbor: Mapping[str, Any], gallery: set[tuple[int, int]]) -> Html:
    """List shared units, with links to galleries on the page."""
    units = [
        link(unit_id(m, d), f"{m}/{d}") if (m, d) in gallery else f"{m}/{d}"
        for m, d in neighbor["units"]
    ]
    return join([*units, *(["…"] if neighbor["shared_units"] > len(units) else [])], ", ")


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    if "code_recall_at_1" not in found:
        return []
    cosine = percent(found["cosine_recall_at_1"])
    text = f"of nearest neighbors by shared units have the query's label (by cosine: {cosine})"
    return [Tile(percent(found["code_recall_at_1"]), text)]


PART = Part(
    title="Similar images by shared units",
    files=("retrieval.json",),
    reads=EncodingsCollector,
    make=_make,
    section=_section,
    tiles=_tiles,
    method=(
        "Retrieval",
        "Some images serve as queries. The others are ranked by the number of variables that take "
        "the same unit, or by the cosine of their features. Recall@k is the share of queries with "
        "their own label among the k nearest, precision@k the share of those k that have it; the "
        "query itself is left out. Queries per second are those of one machine at one moment.",
    ),
)
