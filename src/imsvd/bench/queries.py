"""`imsvd bench queries`: whether "A and not B" finds the images that it means, by known attributes.

Half of the images of an index name units, the other half measures. A variable sorts the values of an attribute
into groups: a value belongs to every unit that at least a tenth of its images take, and values that
share a unit are one group. If there are at least two groups, the units of each are named by its values, as
with `imsvd name`. Then "A & !B" is asked for all pairs of overlapping groups, and must find exactly the
images with the values of A that B does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from imsvd.bench.comparison import Row, show_tables, write_tables
from imsvd.errors import InputError
from imsvd.index import Index
from imsvd.index.query import parse
from imsvd.index.searching import find, vocabulary
from imsvd.provenance import environment

SHARE = 0.1
"""A value belongs to the units that at least this share of its images take."""
PRECISION, RECALL = 0.9, 0.8
"""What queries are expected to reach."""

Values = frozenset[int]
Named = dict[Values, tuple[int, tuple[int, ...]]]
"""Variable and units by the group of values that they stand for."""


def groups(
    codes: NDArray[np.integer], values: NDArray[np.integer], share: float = SHARE
) -> dict[Values, tuple[int, ...]]:
    """Return the groups into which a variable sorts values, with the units of each.

    Args:
        codes: unit of each image, (n,).
        values: value of an attribute of each image, (n,).
        share: smallest share of a value's images that counts.
    """
    known = np.unique(values).tolist()
    taken = {
        value: {
            unit
            for unit in np.unique(codes).tolist()
            if (codes[values == value] == unit).mean() >= share
        }
        for value in known
    }
    joined: list[tuple[set[int], set[int]]] = []
    for value in known:
        own, units = {value}, set(taken[value])
        for other in [entry for entry in joined if entry[1] & units]:
            joined.remove(other)
            own, units = own | other[0], units | other[1]
        joined.append((own, units))
    return {frozenset(own): tuple(sorted(units)) for own, units in joined}


def name_units(codes: NDArray[np.integer], values: NDArray[np.integer]) -> Named:
    """Return for each group of values the variable and units that stand for it; first variables first."""
    named: Named = {}
    for variable in range(codes.shape[1]):
        found = groups(codes[:, variable], values)
        if len(found) > 1:
            for group, units in found.items():
                named.setdefault(group, (variable, units))
    return named


def _text(variable: int, units: Sequence[int]) -> str:
    return "(" + " | ".join(f"{variable}.{unit}" for unit in units) + ")"


def random_half(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the positions of the half of `count` images that names units."""
    return np.random.default_rng(seed).permutation(count)[: count // 2]


def measure(index: Index, facet: str, seed: int = 0) -> Row:
    """Name units by one attribute of an index and measure all queries "A & !B"."""
    values = index.facet(facet).astype(np.int64)
    known = np.flatnonzero(values > 0)  # 0 is unknown
    naming = known[random_half(len(known), seed)]
    measured = np.setdiff1d(known, naming)
    named = name_units(index.codes()[naming], values[naming])
    scores = []
    for first, second in permutations(named, 2):
        if not first & second or not first - second:
            continue
        query = f"{_text(*named[first])} & !{_text(*named[second])}"
        found = np.intersect1d(find(index, parse(query, vocabulary(index))), measured)
        wanted = measured[np.isin(values[measured], list(first - second))]
        right = len(np.intersect1d(found, wanted))
        scores.append((right / max(1, len(found)), right / max(1, len(wanted))))
    row: Row = {"attribute": facet, "groups": len(named), "queries": len(scores)}
    if scores:
        table = np.array(scores)
        row["precision"], row["recall"] = table.mean(axis=0).tolist()
        row["reached"] = float(((table[:, 0] >= PRECISION) & (table[:, 1] >= RECALL)).mean())
    return row


def run(
    path: Path, seed: int = 0, console: Console | None = None, output: Path | None = None
) -> list[Row]:
    """Measure queries on the attributes of an index, such as one of `shapes`."""
    console, index = console or Console(), Index(path)
    facets = [name for name in index.facets if name not in ("split", "label")]
    if not facets:
        raise InputError(f"{path} has no attributes; make an index of data that has, as `shapes`.")
    rows = [measure(index, facet, seed) for facet in facets]
    tables = {"“A and not B”, by attribute": _table(rows)}
    show_tables(tables, console)
    if output is not None:
        facts = environment() | {"index": f"{path}, {len(index):,} images", "seed": str(seed)}
        write_tables(output, "Queries over recovered attributes", facts, rows, tables)
    return rows


def _table(rows: Sequence[Row]) -> list[list[str]]:
    reached = f"reach {PRECISION:.0%} and {RECALL:.0%}"
    lines = [["attribute", "groups named", "queries", "precision", "recall", reached]]
    for row in rows:
        shares = [
            f"{row[key]:.1%}" if key in row else "" for key in ("precision", "recall", "reached")
        ]
        lines.append([row["attribute"], str(row["groups"]), str(row["queries"]), *shares])
    return lines
