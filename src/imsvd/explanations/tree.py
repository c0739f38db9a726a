"""A small decision tree over codes, to be read: each question is whether a variable takes a unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DEPTH = 3
_FEWEST = 10
"""Images below which a branch is not split further."""

Codes = NDArray[np.integer[Any]]


class Leaf(NamedTuple):
    """Answers with the commonest value of the images that reach it."""

    value: int
    share: float
    images: int


class Question(NamedTuple):
    """Asks whether `variable` takes `unit`."""

    variable: int
    unit: int
    yes: Question | Leaf
    no: Question | Leaf


class CodeTree(NamedTuple):
    """A tree grown on every second image and tested on the others."""

    text: str
    accuracy: float
    """Share of the test images that it gets right."""
    majority_accuracy: float
    """The same for always answering with the commonest value of the training half."""


def code_tree(
    codes: Codes, values: NDArray[np.int64], variables: Sequence[int], names: Sequence[str]
) -> CodeTree:
    """Predict `values` (n,) from codes (n, M), asking about `variables` only."""
    numbers, compact = np.unique(values, return_inverse=True)
    titles = [names[number] if number < len(names) else str(number) for number in numbers]
    train, test = slice(0, None, 2), slice(1, None, 2)
    root = grow(codes[train], compact[train], variables, len(numbers), DEPTH)
    majority = np.bincount(compact[train]).argmax()
    return CodeTree(
        "\n".join(describe(root, titles)),
        _share(predict(root, codes[test]) == compact[test]),
        _share(compact[test] == majority),
    )


def _share(hits: NDArray[np.bool_]) -> float:
    return float(hits.mean()) if len(hits) else 0.0


def grow(
    codes: Codes, values: NDArray[np.int64], variables: Sequence[int], num_values: int, depth: int
) -> Question | Leaf:
    """Ask the question that lowers the Gini impurity most, then go on in both branches."""
    counts = np.bincount(values, minlength=num_values)
    leaf = Leaf(int(counts.argmax()), float(counts.max() / max(1, len(values))), len(values))
    if depth == 0 or len(values) < 2 * _FEWEST:
        return leaf
    best, question = _purity(counts[None])[0] + 1e-9 * len(values), None
    for variable in variables:
        column = codes[:, variable].astype(np.int64)
        size = (int(column.max()) + 1) * num_values
        yes = np.bincount(column * num_values + values, minlength=size).reshape(-1, num_values)
        no = counts - yes
        purity = _purity(yes) + _purity(no)
        purity[np.minimum(yes.sum(1), no.sum(1)) < _FEWEST] = -1.0
        unit = int(purity.argmax())
        if purity[unit] > best:
            best, question = purity[unit], (variable, unit)
    if question is None:
        return leaf
    taken = codes[:, question[0]] == question[1]
    branches = [
        grow(codes[part], values[part], variables, num_values, depth - 1)
        for part in (taken, ~taken)
    ]
    if branches[0] == branches[1]:
        return leaf
    return Question(*question, *branches)


def _purity(counts: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Σ n_c² / n of each row of (rows, values): the images less their Gini impurity."""
    totals = np.maximum(counts.sum(1), 1)
    purity: NDArray[np.float64] = (counts.astype(np.float64) ** 2).sum(1) / totals
    return purity


def predict(node: Question | Leaf, codes: Codes) -> NDArray[np.int64]:
    """The answer for every row of codes (n, M)."""
    if isinstance(node, Leaf):
        return np.full(len(codes), node.value, dtype=np.int64)
    taken = codes[:, node.variable] == node.unit
    return np.where(taken, predict(node.yes, codes), predict(node.no, codes))


def describe(node: Question | Leaf, names: Sequence[str], indent: str = "") -> list[str]:
    """The tree as lines of text."""
    if isinstance(node, Leaf):
        return [f"{indent}{names[node.value]} ({node.share:.0%} of {node.images:,})"]
    return [
        f"{indent}variable {node.variable} takes unit {node.unit}?",
        f"{indent}yes:",
        *describe(node.yes, names, indent + "  "),
        f"{indent}no:",
        *describe(node.no, names, indent + "  "),
    ]
