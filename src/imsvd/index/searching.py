"""Search: images that a query asks for, and images that are like others, see `likeness`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.errors import InputError
from imsvd.index.columns import confidence_at, equal_to, members, unpack
from imsvd.index.contents import Contents
from imsvd.index.likeness import Example, Scores, example, highest, most_alike
from imsvd.index.query import (
    Node,
    Vocabulary,
    evaluate,
    parse,
    positive_terms,
    reasons,
)

SHOWN_UNITS = 5
"""Most shared units in the reason for a similar image."""


@dataclass(frozen=True)
class Match:
    """An image that was found.

    Attributes:
        position: its position in the index.
        path: its path.
        score: of images like others, the similarity; otherwise the mean confidence of the units asked for.
        reasons: units and labels because of which it was found.
        state: "deleted" or "changed" if its file is no longer what was encoded.
    """

    position: int
    path: str
    score: float
    reasons: tuple[str, ...]
    state: str = ""


@dataclass(frozen=True)
class Matches:
    """The best images that were found, and how many there are in all."""

    items: tuple[Match, ...]
    total: int

    def __len__(self) -> int:
        return len(self.items)

    def to_pandas(self) -> Any:
        """Return the matches as a pandas data frame."""
        return data_frame(map(asdict, self.items), Match.__dataclass_fields__)


def data_frame(rows: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None) -> Any:
    """Return rows as a pandas data frame; `columns` are those of a frame without rows too."""
    try:
        import pandas  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError("to_pandas() needs pandas; run pip install pandas.") from None
    return pandas.DataFrame(list(rows), columns=None if columns is None else list(columns))


def search(
    index: Contents,
    query: str = "",
    *,
    like: Sequence[str | Path] = (),
    unlike: Sequence[str | Path] = (),
    count: int = 20,
) -> Matches:
    """Find images, best first.

    Args:
        index: where to search.
        query: units and labels, see `imsvd.index.query`; empty for all images.
        like: images that results shall resemble: paths in the index, or other files.
        unlike: images that results shall not resemble.
        count: most results to return; 0 returns all.
    """
    if not query.strip() and not like and not unlike:
        raise InputError("give a query such as '12.3 & !4.7', or an image to compare with.")
    if count < 0:
        raise InputError(f"count = {count}: choose 1 or more, or 0 for all.")
    ranking = rank(
        index,
        query,
        [example(index, path) for path in like],
        [example(index, path) for path in unlike],
        count or len(index),
    )
    return Matches(matches(index, ranking), ranking.total)


class Ranking(NamedTuple):
    """Positions of the best images, best first, their scores, and how many images were found in all."""

    positions: NDArray[np.int64]
    scores: Scores
    total: int
    node: Node | None
    like: Sequence[tuple[Example, Scores]]
    """Images that the results resemble, and what each of their units weighs."""


def rank(
    index: Contents, query: str, like: Sequence[Example], unlike: Sequence[Example], count: int
) -> Ranking:
    """Put the images that a query asks for in order; without query and examples, all as they come."""
    node = parse(query, vocabulary(index)) if query.strip() else None
    if like or unlike:
        alike = most_alike(index, node, like, unlike, count)
        weighed = list(zip(like, alike.weights, strict=True))
        return Ranking(alike.positions, alike.scores, alike.total, node, weighed)
    if node is None:
        best = np.arange(min(count, len(index)))
        return Ranking(best, np.zeros(len(best), dtype=np.float32), len(index), None, ())
    found = find(index, node)
    scores = _confidence(index, node, found)
    order = highest(scores, count)
    return Ranking(found[order], scores[order], len(found), node, ())


def matches(
    index: Contents, ranking: Ranking, first: int = 0, last: int | None = None
) -> tuple[Match, ...]:
    """Describe the images of a ranking, or those from place `first` up to place `last`."""
    chosen = slice(first, last)
    return tuple(
        _match(index, position, score, ranking)
        for position, score in zip(
            ranking.positions[chosen].tolist(), ranking.scores[chosen].tolist(), strict=True
        )
    )


def vocabulary(index: Contents) -> Vocabulary:
    """Return what queries to an index may speak of."""
    return Vocabulary(index.units, index.names, index.facets)


def find(index: Contents, node: Node) -> NDArray[np.int64]:
    """Return the positions of all images that a parsed query asks for."""
    found = []
    for start, segment in zip(index.starts, index.segments, strict=False):
        inside = segment.living(members(evaluate(node, segment), segment.count))
        found.append(np.flatnonzero(inside) + start)
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _confidence(index: Contents, node: Node, found: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the mean confidence of the units asked for that each image found has."""
    terms = positive_terms(node)
    total = np.zeros(len(found), dtype=np.float32)
    number = np.zeros(len(found), dtype=np.float32)
    for first, segment in zip(index.starts, index.segments, strict=False):
        own = slice(*np.searchsorted(found, [first, first + len(segment)]))
        rows = found[own] - first
        rows = rows if segment.live is None else segment.live[rows]
        for term in terms if len(rows) else ():
            planes, levels = segment.unit_planes(term.variable), segment.level_planes(term.variable)
            has = members(equal_to(planes, term.unit), segment.count)[rows]
            sure = confidence_at(unpack(levels, segment.count)[rows])
            total[own] += np.where(has, sure, 0)
            number[own] += has
    return (total / np.maximum(number, 1)).astype(np.float32)


def _match(index: Contents, position: int, score: float, ranking: Ranking) -> Match:
    image, facts = index.image(position), index.facts(position)
    why = reasons(ranking.node, facts) if ranking.node else []
    for each, weight in ranking.like:
        shared = np.flatnonzero(np.array(facts.codes) == each.codes)
        rarest = shared[np.argsort(-weight[shared], kind="stable")][:SHOWN_UNITS]
        listed = ", ".join(unit_text(index, variable, facts.codes[variable]) for variable in rarest)
        why.append(f"shares {len(shared)} of {len(facts.codes)} units: {listed}".rstrip(": "))
    return Match(position, image.path, score, tuple(why), image.state())


def unit_text(index: Contents, variable: int, unit: int) -> str:
    """Return a unit such as "12.3", with its name if it has one."""
    key = f"{variable}.{unit}"
    name = index.names.get(key, "")
    return f"{key} {name}" if name else key
