"""Measures of what the units of a hard code stand for, how stable they are, and what neighbors they give.

| function | question |
|---|---|
| `unit_purity(codes, labels, units)` | Do the images of a unit share a label? |
| `Monosemanticity(num_units, num_features)`, `monosemanticity(codes, features, units)` | Do they look alike? |
| `matched_units(first, second, units, other_units)` | Does another seed find the same units? |
| `cosine_recall(codes, features, units)` | Are the nearest images by code the nearest by cosine? |
| `contingency(first, second, units, other_units)` | How many images do two units share? |
| `pair_information(counts, units)` | What does a variable say about another? |

A code is either an integer array (n, M), the unit of each of M variables, with `units`, the number of
units of each variable; or a boolean array (n, W), the set of active units of each image, with `units`
left out, as for sparse autoencoders. W is the number of units of all variables together. Features are
(n, width), an array or a tensor, and need not have length 1. Everything is computed in blocks of
images, and never for all pairs of images at once.

Stability by chance: match one code with the rows of the other in random order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.errors import InputError
from imsvd.information import surprise, variable_sums

MATCHED = 0.5
"""Units of two codes are the same if the Jaccard overlap of their images is at least this."""
NEIGHBORS = 10
DRAWS = 30
"""Random sets per size of a unit, which give the purity expected by chance."""
BLOCK = 1024
"""Images whose active units are written out at a time; float32 counts them exactly."""
_QUERIES = 256

Codes = NDArray[Any]
Floats = NDArray[np.float64]
Units = Sequence[int] | None


class UnitScores(NamedTuple):
    """A measure of W units. Units with too few images are NaN and do not enter the means."""

    per_unit: Floats
    """(W,)"""
    by_chance: Floats
    """Expected for a random set of as many images, (W,)."""
    sizes: NDArray[np.int64]
    """Images of each unit, (W,)."""

    @property
    def mean(self) -> float:
        """Mean over units, weighted by their sizes; NaN if no unit has enough images."""
        return self._weighted(self.per_unit)

    @property
    def mean_by_chance(self) -> float:
        """The same for random sets of the same sizes."""
        return self._weighted(self.by_chance)

    def _weighted(self, values: Floats) -> float:
        known = ~np.isnan(self.per_unit)
        if not known.any():
            return float("nan")
        return float(np.average(values[known], weights=self.sizes[known]))


class Matching(NamedTuple):
    """Units of two codes, one to one, so that the sum of their Jaccard overlaps is largest."""

    first: NDArray[np.int64]
    """Unit of the first code of each pair."""
    second: NDArray[np.int64]
    """Its partner in the second code."""
    jaccard: Floats
    """Images in both divided by images in either, per pair."""
    num_units: int
    """Units that any image takes, of the code that has more of them."""

    @property
    def share(self) -> float:
        """Share of units whose partner overlaps by `MATCHED` or more; units without partner do not."""
        return float((self.jaccard >= MATCHED).sum()) / max(1, self.num_units)

    @property
    def mean_jaccard(self) -> float:
        """Mean overlap of a unit and its partner; 0 for units without partner."""
        return float(self.jaccard.sum()) / max(1, self.num_units)


def contingency(
    first: Codes, second: Codes, units: Units = None, other_units: Units = None
) -> Floats:
    """Count the images that take a unit of each of two codes: (W, W')."""
    _check_rows(first, second)
    counts = torch.zeros(_width(first, units), _width(second, other_units), dtype=torch.float64)
    pairs = zip(_blocks(first, units), _blocks(second, other_units), strict=True)
    for ours, theirs in pairs:
        counts += ours.T @ theirs
    result: Floats = counts.numpy()
    return result


def pair_information(counts: Tensor, units: Sequence[int]) -> Tensor:
    """Return the mutual information of two codes' variables in nats, (M, M).

    The part that n images show by chance is subtracted: (d' - 1)(d'' - 1) / 2n for variables that use
    d' and d'' units (Miller, 1955).

    Args:
        counts: (W, W) images that take a unit of each code; both codes have the same variables.
        units: number of units of each variable.
    """
    first = units[0]
    sizes = tuple(units)
    ours, theirs = counts[:, :first].sum(1), counts[:first].sum(0)
    images = ours[:first].sum()
    singles = [variable_sums(surprise(taken / images), sizes) for taken in (ours, theirs)]
    rows = torch.split(surprise(counts / images), list(units))
    pairs = torch.stack([variable_sums(row.sum(0), sizes) for row in rows])
    used = [variable_sums((taken > 0).double(), sizes) - 1 for taken in (ours, theirs)]
    information = singles[0][:, None] + singles[1][None, :] - pairs
    return information - torch.outer(*used) / (2 * images)


def unit_purity(
    codes: Codes, labels: NDArray[np.integer[Any]], units: Units = None, *, seed: int = 0
) -> UnitScores:
    """Return the share of every unit's most frequent label, against random sets of the same sizes.

    Purity of a unit with n_c images of label c: max n_c / Σ n_c. Images with a negative label are
    left out.
    """
    _check_rows(codes, labels)
    known = labels >= 0
    numbers, compact = np.unique(labels[known], return_inverse=True)
    if not len(numbers):
        raise InputError("no image has a label; purity needs labels.")
    counts = contingency(codes[known], compact[:, None], units, (len(numbers),))
    # Labels are exclusive, so a unit's images are counted once.
    sizes = counts.sum(1).astype(np.int64)
    taken = np.where(sizes > 0, sizes, 1)
    purity = np.where(sizes > 0, counts.max(1) / taken, np.nan)
    return UnitScores(purity, _random_purity(np.bincount(compact), sizes, seed), sizes)


def _random_purity(
    totals: NDArray[np.int64], sizes: NDArray[np.int64], seed: int
) -> NDArray[np.float64]:
    """Return the mean purity of `DRAWS` random sets of each size from images with `totals` labels."""
    random = np.random.default_rng(seed)
    distinct, places = np.unique(sizes, return_inverse=True)
    means = [
        random.multivariate_hypergeometric(totals, size, DRAWS).max(1).mean() / size
        if size
        else np.nan
        for size in distinct.tolist()
    ]
    return np.array(means)[places]


class Monosemanticity:
    """Mean pairwise cosine similarity of each unit's images, from one pass over images in any batches.

    The n (n - 1) ordered pairs of n unit vectors v have the sum |Σ v|² - Σ |v|², so that the sum of
    the vectors is all that needs to be kept. A random set of any size is expected to have the mean
    similarity of all images, whose sum is the last row.
    """

    def __init__(self, num_units: int, num_features: int) -> None:
        self.sums = torch.zeros(num_units + 1, num_features, dtype=torch.float64)
        """Sum of the normalized features of each unit's images; the last row has all images."""
        self.squares = torch.zeros(num_units + 1, dtype=torch.float64)
        """Sum of their squared lengths: 1 per image, or 0 if its features are 0."""
        self.sizes = torch.zeros(num_units + 1, dtype=torch.float64)

    def add(self, codes: Codes, features: Any, units: Units = None) -> None:
        """Add images: their code and features, a tensor or array (batch, num_features)."""
        _check_rows(codes, features)
        for start, active in zip(range(0, len(codes), BLOCK), _blocks(codes, units), strict=True):
            vectors = _normalized(features[start : start + BLOCK]).double()
            members = torch.cat((active, torch.ones(len(active), 1)), 1).double()
            self.sums += members.T @ vectors
            self.squares += members.T @ vectors.square().sum(1)
            self.sizes += members.sum(0)

    def scores(self) -> UnitScores:
        """Return the similarity of each unit's images; NaN below two images."""
        pairs = self.sizes * (self.sizes - 1)
        similarity = (self.sums.square().sum(1) - self.squares) / pairs
        found = torch.where(pairs > 0, similarity, torch.nan).numpy()
        sizes = self.sizes.long().numpy()
        return UnitScores(found[:-1], np.full(len(found) - 1, found[-1]), sizes[:-1])


def monosemanticity(codes: Codes, features: Any, units: Units = None) -> UnitScores:
    """Return the mean pairwise cosine similarity of each unit's images, against random sets."""
    measure = Monosemanticity(_width(codes, units), features.shape[1])
    measure.add(codes, features, units)
    return measure.scores()


def matched_units(
    first: Codes, second: Codes, units: Units = None, other_units: Units = None
) -> Matching:
    """Match the units of two codes of the same images one to one by the Hungarian method.

    The time grows with the cube of the number of units.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    shared = contingency(first, second, units, other_units)
    ours, theirs = unit_sizes(first, units), unit_sizes(second, other_units)
    union = ours[:, None] + theirs[None, :] - shared
    jaccard = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    rows, columns = linear_sum_assignment(jaccard, maximize=True)
    found = jaccard[rows, columns]
    met = found > 0
    used = max(int((ours > 0).sum()), int((theirs > 0).sum()))
    return Matching(rows[met], columns[met], found[met], used)


def unit_sizes(codes: Codes, units: Units = None) -> NDArray[np.int64]:
    """Count the images of every unit: (W,)."""
    counts = torch.zeros(_width(codes, units), dtype=torch.float64)
    for active in _blocks(codes, units):
        counts += active.sum(0)
    sizes: NDArray[np.int64] = counts.long().numpy()
    return sizes


def cosine_recall(
    codes: Codes,
    features: Any,
    units: Units = None,
    *,
    bank: tuple[Codes, Any] | None = None,
    neighbors: int = NEIGHBORS,
) -> float:
    """Return the share of the nearest images by cosine that are among as many nearest by code.

    Images are near by code if they share many units. Images that share equally many are in random
    order; the expectation over these orders is returned (see `expected_hits`).

    Args:
        codes: the code of each query.
        features: the features of each query.
        units: number of units of each variable, for integer codes.
        bank: codes and features of the images to search; by default the other queries.
        neighbors: number of nearest images.
    """
    bank_codes, bank_features = (codes, features) if bank is None else bank
    neighbors = min(neighbors, len(bank_codes) - (bank is None))
    if neighbors < 1:
        raise InputError("cosine recall needs at least one image to search besides the query.")
    hits = 0.0
    vectors = _normalized(bank_features)
    for start in range(0, len(codes), _QUERIES):
        rows = slice(start, start + _QUERIES)
        cosine = _normalized(features[rows]) @ vectors.T
        (active,) = _blocks(codes[rows], units)
        shared = torch.cat([active @ each.T for each in _blocks(bank_codes, units)], 1)
        if bank is None:
            own = torch.arange(len(cosine))
            cosine[own, start + own] = -torch.inf
            shared[own, start + own] = -torch.inf
        hits += float(expected_hits(shared, cosine.topk(neighbors).indices).sum())
    return hits / (len(codes) * neighbors)


def expected_hits(similarity: Tensor, relevant: Tensor) -> Tensor:
    """Return how many of k relevant images are expected among the k most similar ones, (m,).

    With a images above the k-th largest similarity and b images at it, each of the b is among the k
    with probability (k - a) / b.

    Args:
        similarity: (m, n) similarity of each query to the n images searched.
        relevant: (m, k) positions of the relevant images.
    """
    k = relevant.shape[1]
    last = similarity.topk(k).values[:, -1:]
    above, tied = similarity > last, similarity == last
    chance = (k - above.sum(1)) / tied.sum(1)
    return above.gather(1, relevant).sum(1) + tied.gather(1, relevant).sum(1) * chance


def _width(codes: Codes, units: Units) -> int:
    """Return the number of units, after checking that `units` fits the code."""
    if codes.dtype == np.bool_:
        if units is not None:
            raise InputError("sets of active units (boolean) have no variables; leave out units.")
        return int(codes.shape[1])
    if units is None or len(units) != codes.shape[1]:
        raise InputError(
            f"units = {units} must give one number for each of {codes.shape[1]} variables."
        )
    if len(codes) and ((codes.min(0) < 0) | (codes.max(0) >= np.asarray(units))).any():
        raise InputError(f"a code has a unit below 0 or beyond units = {units}.")
    return sum(units)


def _blocks(codes: Codes, units: Units) -> Iterator[Tensor]:
    """Yield the active units of the images, up to `BLOCK` at a time, as 0 and 1: (block, W)."""
    for start in range(0, len(codes), BLOCK):
        block = codes[start : start + BLOCK]
        if units is None:
            yield torch.from_numpy(np.ascontiguousarray(block)).float()
            continue
        places = torch.from_numpy(block + np.cumsum([0, *units[:-1]]))
        yield torch.zeros(len(block), sum(units)).scatter_(1, places, 1.0)


def _normalized(features: Any) -> Tensor:
    values = torch.as_tensor(features).float().cpu()
    return torch.nn.functional.normalize(values, dim=1)


def _check_rows(first: Any, second: Any) -> None:
    if len(first) != len(second):
        raise InputError(
            f"{len(first):,} and {len(second):,} rows do not belong to the same images."
        )
