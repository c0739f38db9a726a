"""Neighbors by code, without favor among equals.

Many images have equal codes, and databases are often sorted by class. Precision and recall are
expected values over all orders of equally similar images; the 20 images that vote are drawn from
these orders at random.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from imsvd.code_measures import expected_hits

CHUNK = 512
"""Queries compared with the database at a time."""
VOTERS = 20


class Database(NamedTuple):
    """Images to search."""

    vectors: Tensor
    """(different codes, size)"""
    places: Tensor
    """(n,) row of `vectors` of each image; equal codes have exactly equal similarities."""
    labels: Tensor
    """(n,) classes, from 0 on."""


class Queries(NamedTuple):
    """Images to search with."""

    vectors: Tensor
    """(m, size)"""
    labels: Tensor
    """(m,)"""
    nearest: Tensor
    """(m, k) images of the database that are nearest by cosine."""


def retrieval_measures(database: Database, queries: Queries, seed: int) -> dict[str, float]:
    """Return precision at 1 and 10, accuracy of the vote and recall of cosine neighbors, in percent."""
    generator = torch.Generator().manual_seed(seed)
    sums = dict.fromkeys(("p1", "p10", "knn20", "recall"), 0.0)
    for start in range(0, len(queries.vectors), CHUNK):
        part = Queries(*(value[start : start + CHUNK] for value in queries))
        similarity = (part.vectors @ database.vectors.T)[:, database.places]
        best = similarity.topk(VOTERS, dim=1).values
        same = part.labels[:, None] == database.labels
        sums["p1"] += float(precision(similarity, same, best[:, :1]).sum())
        sums["p10"] += float(precision(similarity, same, best[:, :10]).sum())
        voters = draw_nearest(similarity, best, generator)
        sums["knn20"] += float(correct_votes(database.labels[voters], part.labels).sum())
        hits = expected_hits(similarity, part.nearest) / part.nearest.shape[1]
        sums["recall"] += float(hits.sum())
    return {name: 100 * value / len(queries.vectors) for name, value in sums.items()}


def precision(similarity: Tensor, same: Tensor, best: Tensor) -> Tensor:
    """Return the expected share of images of the query's class among the k nearest, (m,).

    Args:
        similarity: (m, n)
        same: (m, n) whether an image has the query's class.
        best: (m, k) largest similarities in descending order.
    """
    last, count = best[:, -1:], best.shape[1]
    above, tied = similarity > last, similarity == last
    chance = (count - above.sum(1)) / tied.sum(1)
    return ((above & same).sum(1) + (tied & same).sum(1) * chance) / count


def draw_nearest(similarity: Tensor, best: Tensor, generator: torch.Generator) -> Tensor:
    """Return the k nearest images of every query, (m, k); equals at the end are drawn at random."""
    last = best[:, -1:]
    random = torch.rand(similarity.shape, generator=generator)
    order = torch.where(similarity > last, 2.0, torch.where(similarity == last, random, -1.0))
    return order.topk(best.shape[1], dim=1).indices


def correct_votes(votes: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where most of (m, k) votes are for the label; 1 / c if c classes have as many."""
    classes = int(max(votes.max(), labels.max())) + 1
    counts = torch.zeros(len(votes), classes).scatter_add_(1, votes, torch.ones(votes.shape))
    winners = counts == counts.amax(1, keepdim=True)
    return winners.gather(1, labels[:, None])[:, 0] / winners.sum(1)
