"""Images whose units are jointly rare, measured in bits.

Codes are described by a tree of the most dependent variables (Chow and Liu, 1968): each variable m
depends on its parent. The surprise of an image x in variable m and its score are

    s_m(x) = -log2 p(x_m | x_parent(m)) - H_m,    score(x) = Σ_m s_m(x) - max_m s_m(x),

where H_m is the mean of -log2 p over all images. The tree keeps dependent variables from counting the
same surprise twice. Leaving out the largest surprise keeps a single variable from making an outlier:
an image is one only if the rest of its code is rare as well. A typical image has a score near the
mean; `deviations` counts the standard deviations above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.population.counting import (
    Codes,
    Progress,
    check_codes,
    pair_bits,
    pair_counts,
    spanning_tree,
)

REASONS = 3
IMAGES_FOR_TREE = 50_000
"""Images that decide which variables are neighbors in the tree; all images give its probabilities."""


class Surprise(NamedTuple):
    """A unit that makes an image rare: `share` of the images with the parent's unit take it.

    The root of the tree has no parent: its share is that of all images, and the parent is None.
    """

    variable: int
    unit: int
    share: float
    bits: float
    parent: tuple[int, int] | None


@dataclass(frozen=True)
class Outlier:
    """An image with a rare code, its score in bits, and the units that contribute most to it."""

    image: int
    score: float
    deviations: float
    reasons: tuple[Surprise, ...]


@dataclass(frozen=True)
class Outliers:
    """The images with the highest scores, highest first, and the scores of all images (n,)."""

    images: tuple[Outlier, ...]
    scores: NDArray[np.float32]


class _Tree(NamedTuple):
    """Probability tables of the tree: variable, its parent or -1, and p(unit | parent's unit)."""

    tables: list[tuple[int, int, NDArray[Any]]]

    def shares(self, codes: Codes) -> NDArray[np.float64]:
        """Return p(x_m | x_parent(m)) of codes (n, M) in the order of the tables, (n, M)."""
        columns = [
            table[0 if parent < 0 else codes[:, parent], codes[:, variable]]
            for variable, parent, table in self.tables
        ]
        return np.stack(columns, axis=1)


def find_outliers(
    codes: Codes, units: tuple[int, ...], count: int = 100, progress: Progress | None = None
) -> Outliers:
    """Return the `count` images of codes (n, M) whose units are jointly rarest."""
    check_codes(codes, units, fewest=2)
    tree = _fit_tree(codes, units, progress)
    scores = np.empty(len(codes), dtype=np.float32)
    means = _means(tree, codes)
    for part in _parts(len(codes)):
        surprise = -np.log2(tree.shares(codes[part])) - means
        scores[part] = surprise.sum(axis=1) - surprise.max(axis=1)
    deviation, mean = (
        float(scores.std(dtype=np.float64)) or 1.0,
        float(scores.mean(dtype=np.float64)),
    )
    order = np.argsort(-scores, kind="stable")[:count]
    found = [
        Outlier(
            int(image),
            float(scores[image]),
            (float(scores[image]) - mean) / deviation,
            _reasons(tree, codes[image], means),
        )
        for image in order
    ]
    return Outliers(tuple(found), scores)


def _fit_tree(codes: Codes, units: tuple[int, ...], progress: Progress | None) -> _Tree:
    sample = codes[:: -(-len(codes) // IMAGES_FOR_TREE)]
    bits = pair_bits(pair_counts(sample, units, progress), units)
    root = np.bincount(codes[:, 0], minlength=units[0])
    # Half a count for every unit keeps probabilities above 0.
    tables = [(0, -1, ((root + 0.5) / (len(codes) + units[0] / 2))[None])]
    for parent, variable in spanning_tree(bits):
        cells = codes[:, parent].astype(np.int64) * units[variable] + codes[:, variable]
        joint = np.bincount(cells, minlength=units[parent] * units[variable])
        joint = joint.reshape(units[parent], units[variable])
        single = joint.sum(axis=0) + 0.5
        # Where few images take the parent's unit, the variable's own shares fill the gap.
        prior = single / single.sum() * units[variable]
        table = (joint + prior) / (joint.sum(axis=1, keepdims=True) + units[variable])
        tables.append((variable, parent, table))
    return _Tree(tables)


def _parts(images: int) -> list[slice]:
    return [slice(start, start + (1 << 16)) for start in range(0, images, 1 << 16)]


def _means(tree: _Tree, codes: Codes) -> NDArray[np.float64]:
    total = np.zeros(len(tree.tables))
    for part in _parts(len(codes)):
        total -= np.log2(tree.shares(codes[part])).sum(axis=0)
    return total / len(codes)


def _reasons(
    tree: _Tree, code: NDArray[np.integer[Any]], means: NDArray[np.float64]
) -> tuple[Surprise, ...]:
    shares = tree.shares(code[None])[0]
    surprise = -np.log2(shares) - means
    found = []
    for place in np.argsort(-surprise, kind="stable")[:REASONS]:
        variable, parent, _ = tree.tables[place]
        above = None if parent < 0 else (parent, int(code[parent]))
        found.append(
            Surprise(
                variable, int(code[variable]), float(shares[place]), float(surprise[place]), above
            )
        )
    return tuple(found)
