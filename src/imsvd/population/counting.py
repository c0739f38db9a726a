"""Counts of units and of pairs of units, and the tree of the most dependent variables.

The units of all variables are numbered in one row, variable after variable. D is the number of all
units, M that of variables. Codes are (n, M) integers: the unit of each variable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imsvd.errors import InputError

Codes = NDArray[np.integer[Any]]
"""Codes (n, M): the unit that each variable takes for each image."""
Progress = Callable[[int, int], None]
"""Called with (done, total)."""
_CHUNK = 1 << 16
"""Rows converted to wide integers at a time."""


def check_codes(codes: Codes, units: tuple[int, ...], fewest: int = 1) -> None:
    """Raise `InputError` unless these are codes of at least `fewest` images in variables of `units`."""
    if codes.ndim != 2 or codes.shape[1] != len(units):
        raise InputError(
            f"codes have shape {codes.shape}, but these are codes of {len(units)} variables; "
            "use the units of the run that made them."
        )
    if len(codes) < fewest:
        raise InputError(f"{len(codes)} images are too few; at least {fewest} are needed.")
    largest = codes.max(axis=0)
    for variable in np.flatnonzero(largest >= np.array(units)):
        raise InputError(
            f"variable {variable} takes unit {largest[variable]}, but has {units[variable]} units; "
            "use the units of the run that made the codes."
        )


def first_units(units: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the number of each variable's first unit among all units, and D at the end, (M + 1,)."""
    return np.concatenate([[0], np.cumsum(units)]).astype(np.int64)


def unit_counts(codes: Codes, units: tuple[int, ...]) -> NDArray[np.int64]:
    """Count the images that take each unit, (D,)."""
    first = first_units(units)
    total = np.zeros(first[-1], dtype=np.int64)
    for start in range(0, len(codes), _CHUNK):
        cells = codes[start : start + _CHUNK].astype(np.int64) + first[:-1]
        total += np.bincount(cells.ravel(), minlength=len(total))
    return total


def pair_counts(
    codes: Codes, units: tuple[int, ...], progress: Progress | None = None
) -> NDArray[np.int64]:
    """Count the images that take both units of every pair, (D, D); the diagonal has the single counts."""
    first = first_units(units)
    total = np.zeros((first[-1], first[-1]), dtype=np.int64)
    columns = np.ascontiguousarray(codes.T).astype(np.int32)
    for a, size in enumerate(units):
        shifted = columns[a] * np.int32(max(units))
        for b in range(a, len(units)):
            cells = np.bincount(shifted + columns[b], minlength=size * max(units))
            table = cells.reshape(size, max(units))[:, : units[b]]
            total[first[a] : first[a + 1], first[b] : first[b + 1]] = table
            total[first[b] : first[b + 1], first[a] : first[a + 1]] = table.T
        if progress is not None:
            done = (a + 1) * (2 * len(units) - a) // 2
            progress(done, len(units) * (len(units) + 1) // 2)
    return total


def pair_bits(counts: NDArray[np.int64], units: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the mutual information of every two variables in bits, (M, M), from `pair_counts`.

    What (D_a - 1)(D_b - 1) / 2n nats show by chance is subtracted; the result is at least 0.
    """
    first = first_units(units)
    images = int(np.trace(counts[: first[1], : first[1]]))
    single = np.diag(counts) / images
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log2(counts / images / (single[:, None] * single))
        terms = np.where(counts > 0, counts / images * ratios, 0.0)
    bits: NDArray[np.float64] = np.add.reduceat(
        np.add.reduceat(terms, first[:-1], axis=0), first[:-1], axis=1
    )
    freedom = np.add.reduceat(single > 0, first[:-1]).astype(np.float64) - 1
    chance = freedom[:, None] * freedom / (2 * images * np.log(2))
    bits = np.maximum(bits - chance, 0.0)
    np.fill_diagonal(bits, 0.0)
    return bits


def spanning_tree(weights: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the maximum spanning tree of (M, M) weights as (parent, child), parents first (Prim)."""
    best, parent = weights[0].copy(), np.zeros(len(weights), dtype=np.int64)
    outside = np.ones(len(weights), dtype=bool)
    outside[0] = False
    edges = []
    while outside.any():
        node = int(np.where(outside, best, -np.inf).argmax())
        edges.append((int(parent[node]), node))
        outside[node] = False
        closer = weights[node] > best
        best, parent = np.where(closer, weights[node], best), np.where(closer, node, parent)
    return edges
