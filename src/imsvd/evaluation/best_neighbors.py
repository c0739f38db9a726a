"""The best neighbors seen so far, and what may be better: selection without a full sort.

Selecting from a whole tile of similarities would cost as much as making it, so a tile is first
compared with each query's worst kept neighbor; what passes is collected, and folded into the kept
ones when there is enough of it. Nothing is approximated.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Columns compared through their common maximum: wide enough to skip nearly all of a tile with one
# vectorized reduction, narrow enough that a hit brings few bystanders along.
_GROUP = 32


class Neighbors(NamedTuple):
    """The nearest bank rows of every query, nearest first; the lower bank row wins a tie.

    Attributes:
        similarities: (queries, num_neighbors) float32: the cosine, or minus half the squared
            Euclidean distance, which for vectors of length 1 is the cosine minus 1.
        indices: (queries, num_neighbors) int64 rows of the bank.
    """

    similarities: Tensor
    indices: Tensor


class _Hits(NamedTuple):
    """Entries of a tile that passed: where they are, and where in their row's list they go."""

    row: Tensor
    position: Tensor
    bank_row: Tensor
    value: Tensor


class Candidates:
    """What has passed the worst of the `kept` neighbors, until it is folded into them."""

    def __init__(self, kept: Neighbors, *, nothing_kept: bool) -> None:
        self._kept, self._nothing_kept = kept, nothing_kept
        self._thresholds = kept.similarities.amin(dim=1)
        self._hits: list[_Hits] = []
        self._counts = torch.zeros_like(kept.indices[:, 0])

    def add(self, tile: Tensor, num_columns: int, offset: int) -> None:
        """Take what is better than the worst kept one from a (rows, columns) tile.

        Strictly better: among equals the earlier bank row is already kept.

        Args:
            tile: (rows, whole blocks) similarities.
            num_columns: how many of the columns are rows of the bank.
            offset: the number of the first of them.
        """
        num_neighbors = self._kept.indices.shape[1]
        if self._nothing_kept and num_columns >= num_neighbors:
            self._keep_best(tile[:, :num_columns], offset)
            return
        tile[:, num_columns:] = -torch.inf
        row, column, value = _above(tile, self._thresholds)
        if not row.numel():
            return
        found = torch.bincount(row, minlength=len(tile))
        before = self._counts - (found.cumsum(0) - found)
        position = torch.arange(len(row), device=row.device) + before.index_select(0, row)
        self._hits.append(_Hits(row, position, column + offset, value))
        self._counts += found
        if int(self._counts.max()) > 2 * num_neighbors:
            self.fold()

    def _keep_best(self, tile: Tensor, offset: int) -> None:
        """Keep the best of the first tile, which has nothing to pass."""
        columns = torch.arange(offset, offset + tile.shape[1], device=tile.device)
        pool = Neighbors(tile, columns.expand_as(tile))
        self._replace(select_best(pool, self._kept.indices.shape[1]))

    def _replace(self, found: Neighbors) -> None:
        keep(self._kept, found)
        self._thresholds = self._kept.similarities.amin(dim=1)
        self._nothing_kept = False

    def fold(self) -> None:
        """Keep the best of the kept ones and of what has passed since."""
        if not self._hits:
            return
        kept = self._kept
        num_rows, num_neighbors = kept.indices.shape
        shape = (num_rows, num_neighbors + int(self._counts.max()))
        pool = Neighbors(
            kept.similarities.new_full(shape, -torch.inf), kept.indices.new_full(shape, -1)
        )
        pool.similarities[:, :num_neighbors] = kept.similarities
        pool.indices[:, :num_neighbors] = kept.indices
        for hits in self._hits:
            place = hits.row * shape[1] + hits.position + num_neighbors
            pool.similarities.view(-1)[place] = hits.value
            pool.indices.view(-1)[place] = hits.bank_row
        self._hits.clear()
        self._counts.zero_()
        self._replace(select_best(pool, num_neighbors))


def _above(similarities: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entries of (rows, columns) `similarities` above their row's threshold (rows,).

    Returns:
        Their row, column and value, (hits,) each, in row-major order.
    """
    num_rows, num_columns = similarities.shape
    groups = similarities.view(num_rows, -1, _GROUP)
    passing = (groups.amax(dim=2) > thresholds[:, None]).view(-1).nonzero().view(-1)
    members = groups.view(-1, _GROUP).index_select(0, passing)
    limits = thresholds.index_select(0, passing * _GROUP // num_columns)
    hits = (members > limits[:, None]).view(-1).nonzero().view(-1)
    places = passing.index_select(0, hits // _GROUP) * _GROUP + hits % _GROUP
    values = members.view(-1).index_select(0, hits)
    return places // num_columns, places % num_columns, values


def select_best(pool: Neighbors, num_neighbors: int) -> Neighbors:
    """The `num_neighbors` best of (rows, candidates), in any order; lower indices win ties."""
    values, places = pool.similarities.topk(num_neighbors, dim=1, sorted=False)
    selected = Neighbors(values, pool.indices.gather(1, places))
    # topk chooses freely among equals, which matters only where the cut falls between equals.
    cut = values.amin(dim=1, keepdim=True)
    tied = ((pool.similarities >= cut).sum(dim=1) > num_neighbors).nonzero()[:, 0]
    if tied.numel():
        ordered = nearest_first(Neighbors(pool.similarities[tied], pool.indices[tied]))
        selected.similarities[tied] = ordered.similarities[:, :num_neighbors]
        selected.indices[tied] = ordered.indices[:, :num_neighbors]
    return selected


def keep(kept: Neighbors, found: Neighbors) -> None:
    """Overwrite what is kept, in place."""
    kept.similarities.copy_(found.similarities)
    kept.indices.copy_(found.indices)


def nearest_first(found: Neighbors) -> Neighbors:
    """Sort every row by falling similarity, equals by rising index."""
    indices, order = found.indices.sort(dim=1)
    similarities, order = found.similarities.gather(1, order).sort(
        dim=1, descending=True, stable=True
    )
    return Neighbors(similarities, indices.gather(1, order))
