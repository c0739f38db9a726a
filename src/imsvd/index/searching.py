"""Search: images that a query asks for, and images that are like others.

Two images are alike in the units that they share. A unit counts with -log of its share of all images, so
that rare units say more. If features are kept, the best images by units are put in order by the cosine of
their features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.errors import InputError
from imsvd.index.columns import Numbers, confidence_at, equal_to, members, size_of, unpack
from imsvd.index.query import (
    Node,
    Vocabulary,
    evaluate,
    parse,
    positive_terms,
    reasons,
)

if TYPE_CHECKING:
    from imsvd.index.index import Index

REORDERED = 500
"""Most images that features put in order."""
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
        return to_pandas(self.items, Match)


def to_pandas(items: Sequence[Any], kind: type[Any]) -> Any:
    """Return dataclasses as a data frame, one row each."""
    try:
        import pandas  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError("to_pandas() needs pandas; run pip install pandas.") from None
    columns = list(kind.__dataclass_fields__)
    return pandas.DataFrame([asdict(item) for item in items], columns=columns)


@dataclass(frozen=True)
class Example:
    """An image that others shall be like or unlike.

    Attributes:
        codes: unit of every variable.
        features: its features, if the index keeps them.
        position: its position, if it is in the index.
    """

    codes: Numbers
    features: NDArray[np.float32] | None
    position: int | None


def search(
    index: Index,
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
    scores: NDArray[np.float32]
    total: int
    node: Node | None
    like: Sequence[Example]


def rank(
    index: Index, query: str, like: Sequence[Example], unlike: Sequence[Example], count: int
) -> Ranking:
    """Put the images that a query asks for in order; without query and examples, all as they come."""
    node = parse(query, vocabulary(index)) if query.strip() else None
    found = find(index, node) if node else np.arange(len(index))
    examples = _Examples(like, unlike)
    if any(examples):
        own = [each.position for each in (*like, *unlike) if each.position is not None]
        found = found[~np.isin(found, own)]
        best, scores = _most_alike(index, found, examples, count)
    elif node is not None:
        all_scores = _confidence(index, node, found)
        order = _best(all_scores, count)
        best, scores = found[order], all_scores[order]
    else:
        best, scores = found[:count], np.zeros(min(count, len(found)), dtype=np.float32)
    return Ranking(best, scores, len(found), node, like)


def matches(
    index: Index, ranking: Ranking, first: int = 0, last: int | None = None
) -> tuple[Match, ...]:
    """Describe the images of a ranking, or those from place `first` up to place `last`."""
    chosen = slice(first, last)
    weights = [unit_weights(index, each.codes) for each in ranking.like]
    return tuple(
        _match(index, position, score, ranking.node, ranking.like, weights)
        for position, score in zip(
            ranking.positions[chosen].tolist(), ranking.scores[chosen].tolist(), strict=True
        )
    )


class _Examples(NamedTuple):
    """Images that results shall resemble, and not resemble."""

    like: Sequence[Example]
    unlike: Sequence[Example]


def vocabulary(index: Index) -> Vocabulary:
    """Return what queries to an index may speak of."""
    return Vocabulary(index.units, index.names, index.facets)


def find(index: Index, node: Node) -> NDArray[np.int64]:
    """Return the positions of all images that a parsed query asks for."""
    found = []
    for start, segment in zip(index.starts, index.segments, strict=False):
        inside = segment.living(members(evaluate(node, segment), segment.count))
        found.append(np.flatnonzero(inside) + start)
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _best(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the positions of the `count` highest scores, highest first; ties in the order of the index."""
    if count < len(scores):
        limit = np.partition(scores, len(scores) - count)[len(scores) - count] if count else np.inf
        above = np.flatnonzero(scores > limit)
        equal = np.flatnonzero(scores == limit)[: count - len(above)]
        chosen = np.sort(np.concatenate([above, equal]))
    else:
        chosen = np.arange(len(scores))
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def _confidence(index: Index, node: Node, found: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the mean confidence of the units asked for that each image found has."""
    terms = positive_terms(node)
    total = np.zeros(len(found), dtype=np.float32)
    number = np.zeros(len(found), dtype=np.float32)
    for first, segment in zip(index.starts, index.segments, strict=False):
        own = slice(*np.searchsorted(found, [first, first + len(segment)]))
        rows = found[own] - first
        for term in terms if len(rows) else ():
            planes, levels = segment.unit_planes(term.variable), segment.level_planes(term.variable)
            has = segment.living(members(equal_to(planes, term.unit), segment.count))[rows]
            sure = confidence_at(segment.living(unpack(levels, segment.count))[rows])
            total[own] += np.where(has, sure, 0)
            number[own] += has
    return (total / np.maximum(number, 1)).astype(np.float32)


def example(index: Index, path: str | Path) -> Example:
    """Return an image of the index, or encode another file."""
    position = index.find(path)
    if position is not None and index.image(position).state() != "changed":
        return example_at(index, position)
    if not Path(path).is_file():
        raise InputError(f"{path} is neither an image of {index.path} nor a file.")
    encoded = index.coder.encode_file(Path(path))
    kept = encoded.features[0] if index.manifest.features is not None else None
    return Example(encoded.codes[0], kept, position)


def example_at(index: Index, position: int) -> Example:
    """Return an image of the index as it was encoded."""
    features = None
    if index.manifest.features is not None:
        features = index.features_at(np.array([position]))[0].astype(np.float32)
    return Example(np.array(index.facts(position).codes), features, position)


def _most_alike(
    index: Index, found: NDArray[np.int64], examples: _Examples, count: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the `count` of the images found that are most alike, best first, and their scores.

    A score is the mean similarity to one group of examples minus that to the other: the weight of
    shared units, or the cosine of features if they are kept.
    """
    scores = np.zeros(len(found), dtype=np.float32)
    for group, sign in ((examples.like, 1), (examples.unlike, -1)):
        for each in group:
            scores += sign / len(group) * shared_weight(index, each.codes)[found]
    if index.manifest.features is not None:
        found = found[_best(scores, max(count, REORDERED))]
        features = index.features_at(found).astype(np.float32)
        features /= np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
        scores = np.zeros(len(found), dtype=np.float32)
        for group, sign in ((examples.like, 1), (examples.unlike, -1)):
            for each in group:
                assert each.features is not None
                length = float(np.linalg.norm(each.features).clip(1e-12))
                scores += sign / len(group) * (features @ each.features) / length
    order = _best(scores, count)
    return found[order], scores[order]


def shared_weight(index: Index, codes: Numbers) -> NDArray[np.float32]:
    """Return the weight of the units that each image shares with a code, (images,), 1 if it shares all."""
    weights = unit_weights(index, codes)
    scores = np.zeros(len(index), dtype=np.float32)
    for start, segment in zip(index.starts, index.segments, strict=False):
        total = np.zeros(segment.count, dtype=np.float32)
        scaled = np.empty_like(total)
        for variable, weight in enumerate(weights):
            inside = equal_to(segment.unit_planes(variable), int(codes[variable]))
            np.multiply(members(inside, segment.count), weight, out=scaled)
            total += scaled
        scores[start : start + len(segment)] = segment.living(total)
    return scores / max(float(weights.sum()), 1e-12)


def unit_weights(index: Index, codes: Numbers) -> NDArray[np.float32]:
    """Return -log of the share of images that have each unit of a code, (variables,)."""
    counts = np.zeros(len(codes), dtype=np.int64)
    for segment in index.segments:
        for variable, unit in enumerate(codes):
            inside = equal_to(segment.unit_planes(variable), int(unit))
            if segment.live is None:
                counts[variable] += size_of(inside, segment.count)
            else:
                counts[variable] += np.count_nonzero(segment.living(members(inside, segment.count)))
    # One more image than there are, so that a unit that nobody has does not weigh infinitely.
    return -np.log((counts + 1) / (len(index) + 1)).astype(np.float32)


def _match(
    index: Index,
    position: int,
    score: float,
    node: Node | None,
    like: Sequence[Example],
    weights: Sequence[NDArray[np.float32]],
) -> Match:
    image, facts = index.image(position), index.facts(position)
    why = reasons(node, facts) if node else []
    for each, weight in zip(like, weights, strict=True):
        shared = np.flatnonzero(np.array(facts.codes) == each.codes)
        rarest = shared[np.argsort(-weight[shared], kind="stable")][:SHOWN_UNITS]
        listed = ", ".join(unit_text(index, variable, facts.codes[variable]) for variable in rarest)
        why.append(f"shares {len(shared)} of {len(facts.codes)} units: {listed}".rstrip(": "))
    return Match(position, image.path, score, tuple(why), image.state())


def unit_text(index: Index, variable: int, unit: int) -> str:
    """Return a unit such as "12.3", with its name if it has one."""
    key = f"{variable}.{unit}"
    name = index.names.get(key, "")
    return f"{key} {name}" if name else key
