"""`imsvd bench queries`: whether "A and not B" finds the images that it means, by known attributes.

Training images name units, test images measure (random halves if there is one split only). A variable recovers
an attribute if each of its units has mostly images of one value and every value has a unit: the value of an
image, guessed by its unit, is then right for at least nine of ten images. The units are named by the
values, as a person does with `imsvd name`. Then "A & !B" is asked for all values A and B of two recovered
attributes, and must find exactly the images with A and without B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

RIGHT = 0.9
"""Share of naming images whose value a variable must tell, to recover the attribute."""

Named = dict[int, tuple[int, tuple[int, ...]]]
"""Variable and units that stand for each value of an attribute."""


def name_units(codes: NDArray[np.integer], values: NDArray[np.integer]) -> Named:
    """Return the units of the variable that tells the values best; none if none tells them well.

    Args:
        codes: units of each image, (n, variables).
        values: value of an attribute of each image, (n,).
    """
    best, right_most = {}, RIGHT * len(values)
    for variable in range(codes.shape[1]):
        named: Named = {}
        right = 0
        for unit in np.unique(codes[:, variable]).tolist():
            counts = np.bincount(values[codes[:, variable] == unit])
            value = int(counts.argmax())
            right += int(counts[value])
            named[value] = variable, (*named.get(value, (variable, ()))[1], unit)
        if right >= right_most and len(named) == len(np.unique(values)):
            best, right_most = named, right
    return best


def naming_and_measured(index: Index, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the images that name units and those that queries are measured on."""
    names = index.facets.get("split", ())
    if {"train", "test"} <= set(names):
        split = index.facet("split")
        train, test = (np.flatnonzero(split == names.index(name) + 1) for name in ("train", "test"))
        return train, test
    order = np.random.default_rng(seed).permutation(len(index))
    return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])


def recovered(index: Index, naming: NDArray[np.int64]) -> dict[str, Named]:
    """Return the named units of every attribute that a variable recovers."""
    codes, found = index.codes(), {}
    for facet in index.facets:
        values = index.facet(facet).astype(np.int64)
        known = naming[values[naming] > 0]  # 0 is unknown
        if facet not in ("split", "label") and len(np.unique(values[known])) > 1:
            found[facet] = name_units(codes[known], values[known])
    return {facet: named for facet, named in found.items() if named}


def measure(
    index: Index,
    wanted: tuple[str, Named],
    unwanted: tuple[str, Named],
    measured: NDArray[np.int64],
) -> Row:
    """Ask "A & !B" for all values A and B of two attributes."""
    (first, first_units), (second, second_units) = wanted, unwanted
    has, lacks = index.facet(first)[measured], index.facet(second)[measured]
    scores = []
    for value, units in first_units.items():
        for other, other_units in second_units.items():
            query = f"{_text(*units)} & !{_text(*other_units)}"
            found = np.intersect1d(find(index, parse(query, vocabulary(index))), measured)
            meant = measured[(has == value) & (lacks != other)]
            right = len(np.intersect1d(found, meant))
            scores.append((right / max(1, len(found)), right / max(1, len(meant))))
    table = np.array(scores)
    return {
        "attribute": first,
        "without": second,
        "queries": len(scores),
        "precision": float(table[:, 0].mean()),
        "recall": float(table[:, 1].mean()),
        "lowest_precision": float(table[:, 0].min()),
        "lowest_recall": float(table[:, 1].min()),
    }


def run(
    path: Path, seed: int = 0, console: Console | None = None, output: Path | None = None
) -> list[Row]:
    """Measure queries over the recovered attributes of an index, such as one of `shapes`."""
    console, index = console or Console(), Index(path)
    facets = [name for name in index.facets if name not in ("split", "label")]
    if not facets:
        raise InputError(f"{path} has no attributes; make an index of data that has, as `shapes`.")
    naming, measured = naming_and_measured(index, seed)
    named = recovered(index, naming)
    if len(named) < 2:
        raise InputError(
            f"variables of {path} recover {len(named)} of its attributes ({', '.join(facets)}); "
            "a query over two attributes needs two."
        )
    rows = [measure(index, *pair, measured) for pair in permutations(named.items(), 2)]
    title = f"“A and not B” over {len(named)} recovered attributes, {len(measured):,} images"
    tables = {title: _table(rows), "Units": _units(index, named)}
    show_tables(tables, console)
    if output is not None:
        facts = environment() | {"index": f"{path}, {len(index):,} images", "seed": str(seed)}
        write_tables(output, "Queries over recovered attributes", facts, rows, tables)
    return rows


def _text(variable: int, units: Sequence[int]) -> str:
    return "(" + " | ".join(f"{variable}.{unit}" for unit in units) + ")"


def _table(rows: Sequence[Row]) -> list[list[str]]:
    measures = ("precision", "recall", "lowest_precision", "lowest_recall")
    titles = ["precision", "recall", "lowest precision", "lowest recall"]
    lines = [["A", "B", "queries", *titles]]
    for row in rows:
        cells = [f"{row[key]:.1%}" for key in measures]
        lines.append([row["attribute"], row["without"], str(row["queries"]), *cells])
    weights = np.array([row["queries"] for row in rows])
    means = [float(np.average([row[key] for row in rows], weights=weights)) for key in measures[:2]]
    least = [min(row[key] for row in rows) for key in measures[2:]]
    shown = [f"{value:.1%}" for value in (*means, *least)]
    return [*lines, ["all", "", str(weights.sum()), *shown]]


def _units(index: Index, named: Mapping[str, Named]) -> list[list[str]]:
    lines = [["attribute", "value", "units"]]
    for facet, units in named.items():
        for value, (variable, chosen) in sorted(units.items()):
            listed = ", ".join(f"{variable}.{unit}" for unit in chosen)
            lines.append([facet, index.facets[facet][value - 1], listed])
    return lines
