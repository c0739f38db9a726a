"""What variables mean, where labels or attributes are known to compare them with.

Normalized mutual information is 2 I / (H(variable) + H(attribute)): 0 when one tells nothing of the
other, 1 when each tells the other fully. It is above 0 for unrelated values too, the more so the
fewer the images, so the same is measured with the attribute's values shuffled: what the best of all
variables reaches then by luck is the baseline that the best variable must beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.datasets import ImageSource
from imsvd.encoder import Encoder
from imsvd.explanations.encodings import Encodings
from imsvd.explanations.subject import Progress
from imsvd.explanations.tree import DEPTH, code_tree
from imsvd.information import codes as taken_units
from imsvd.information import soft_discretize

RECOVERED = 0.3
"""An attribute counts as recovered when a variable's NMI exceeds the baseline by this."""

SHUFFLES = 5
_LISTED = 5
_TREE_VARIABLES = 16

Codes = NDArray[np.integer[Any]]


class Attribute(NamedTuple):
    """A known factor: its value for every encoded image, and the names of its values."""

    values: NDArray[np.int64]
    names: tuple[str, ...]


def known_attributes(source: ImageSource, images: NDArray[np.int64]) -> dict[str, Attribute]:
    """What is known of the images at positions `images`: attributes, and labels under "label".

    Labels that repeat an attribute, as those of `shapes` do, are not listed twice.
    """
    found = {
        name: Attribute(values.numpy()[images], tuple(source.attribute_values.get(name, ())))
        for name, values in source.attributes.items()
    }
    if source.labels is not None:
        labels = source.labels.numpy()[images]
        if not any(np.array_equal(labels, other.values) for other in found.values()):
            found["label"] = Attribute(labels, tuple(source.classes))
    return {
        name: attribute for name, attribute in found.items() if len(np.unique(attribute.values)) > 1
    }


def normalized_information(codes: Codes, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """NMI of every variable of codes (n, M) with one attribute (n,): (M,)."""
    numbers, compact = np.unique(values, return_inverse=True)
    return np.array([_nmi(column.astype(np.int64), compact, len(numbers)) for column in codes.T])


def _nmi(column: NDArray[np.int64], values: NDArray[np.int64], num_values: int) -> float:
    table = np.bincount(
        column * num_values + values, minlength=(int(column.max()) + 1) * num_values
    )
    cells = table.reshape(-1, num_values) / len(column)
    first, second = _entropy(cells.sum(1)), _entropy(cells.sum(0))
    if first + second == 0:
        return 0.0
    return max(0.0, 2 * (first + second - _entropy(cells)) / (first + second))


def _entropy(shares: NDArray[np.float64]) -> float:
    occupied = shares[shares > 0]
    return float(-(occupied * np.log(occupied)).sum())


def shuffled_baseline(
    codes: Codes, values: NDArray[np.int64], seed: int = 0, progress: Progress | None = None
) -> float:
    """The best variable's NMI with shuffled values, averaged over `SHUFFLES` shuffles."""
    random = np.random.default_rng(seed)
    best = []
    for number in range(SHUFFLES):
        best.append(normalized_information(codes, random.permutation(values)).max())
        if progress is not None:
            progress(number + 1, SHUFFLES)
    return float(np.mean(best))


def meaning(
    encodings: Encodings, attributes: Mapping[str, Attribute], progress: Progress | None = None
) -> dict[str, Any]:
    """Everything known about what variables mean, as one JSON-ready record."""
    records = {}
    # What is counted are shuffles: they take most of the time, and there may be one attribute only.
    total = SHUFFLES * len(attributes)
    for number, (name, attribute) in enumerate(attributes.items()):

        def tell(done: int, _: int, number: int = number) -> None:
            if progress is not None:
                progress(SHUFFLES * number + done, total)

        tell(0, SHUFFLES)
        records[name] = _describe(encodings.codes, attribute, tell)
    best = [max(record["nmi"]) for record in records.values()]
    recovered = [name for name, record in records.items() if record["recovered"]]
    return {
        "images": len(encodings.images),
        "recovered_means": f"best NMI at least {RECOVERED} above the shuffled baseline",
        "attributes_known": len(records),
        "attributes_recovered": len(recovered),
        "recovered": recovered,
        "mean_best_nmi": float(np.mean(best)) if best else None,
        "attributes": records,
    }


def _describe(codes: Codes, attribute: Attribute, progress: Progress) -> dict[str, Any]:
    known = attribute.values >= 0
    codes, values = codes[known], attribute.values[known]
    information = normalized_information(codes, values)
    baseline = shuffled_baseline(codes, values, progress=progress)
    order = np.argsort(-information, kind="stable")
    # The tree is tested on every second image, which must not choose its variables either.
    learned = np.argsort(-normalized_information(codes[::2], values[::2]), kind="stable")
    tree = code_tree(codes, values, learned[:_TREE_VARIABLES].tolist(), attribute.names)
    return {
        "values": list(attribute.names),
        "nmi": [round(float(value), 5) for value in information],
        "baseline": round(baseline, 5),
        "recovered": bool(information[order[0]] - baseline >= RECOVERED),
        "most_specialized": [
            {"variable": int(m), "nmi": round(float(information[m]), 5)} for m in order[:_LISTED]
        ],
        "tree": {
            "depth": DEPTH,
            "accuracy": tree.accuracy,
            "majority_accuracy": tree.majority_accuracy,
            "text": tree.text,
        },
    }


BINS = 8


def explainability(
    encoder: Encoder, features: Tensor, attributes: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return how many attributes are recovered and the mean of their best NMI; empty without any.

    Args:
        encoder: whose variables, if it has any, are asked.
        features: (n, num_features) its features of n images.
        attributes: (n,) values of each; below 0 where unknown.
    """
    variables = variable_codes(encoder, features)
    best, recovered = [], 0
    for values in attributes.values():
        known = values.numpy() >= 0
        if len(np.unique(values.numpy()[known])) < 2:
            continue
        shown = variables[known], values.numpy()[known]
        best.append(float(normalized_information(*shown).max()))
        recovered += best[-1] - shuffled_baseline(*shown) >= RECOVERED
    if not best:
        return {}
    return {"attributes_recovered": float(recovered), "mean_best_nmi": float(np.mean(best))}


@torch.no_grad()
def variable_codes(encoder: Encoder, features: Tensor) -> Codes:
    """The unit of every variable, or the bin of every feature, (n, variables)."""
    units = encoder.description.units
    if not units:
        return feature_bins(features)
    device = encoder.mean.device
    q = soft_discretize(encoder.projector(features.to(device)), units)
    found: Codes = taken_units(q, units).cpu().numpy()
    return found


def feature_bins(features: Tensor) -> Codes:
    """Cut each feature into `BINS` bins with as many images each; equal values share a bin."""
    values = features.double().numpy()
    edges = np.quantile(values, np.arange(1, BINS) / BINS, axis=0)
    return np.stack(
        [np.searchsorted(edges[:, n], values[:, n], side="right") for n in range(values.shape[1])],
        axis=1,
    ).astype(np.uint8)
