"""Exact nearest neighbours by cosine similarity, in bounded memory.

The similarity matrix is made tile by tile, one matrix product each, and every tile is folded into
the `num_neighbours` best seen so far. Selecting from a whole tile would cost as much as making it,
so a tile is first compared with each query's worst kept neighbour: after the first few tiles almost
nothing passes, and the search runs at the speed of the matrix product. Nothing is approximated.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd.errors import InputError

# Columns compared through their common maximum: wide enough to skip nearly all of a tile with one
# vectorised reduction, narrow enough that a hit brings few bystanders along.
_GROUP = 32

# The first tile has no threshold to filter by, so it is kept narrow.
_FIRST_TILE = 1024


class Neighbours(NamedTuple):
    """The nearest bank rows of every query, nearest first; the lower bank row wins a tie.

    Attributes:
        similarities: (queries, num_neighbours) float32 cosine similarities.
        indices: (queries, num_neighbours) int64 rows of the bank.
    """

    similarities: Tensor
    indices: Tensor


def nearest_neighbours(
    bank: Tensor,
    queries: Tensor,
    num_neighbours: int,
    *,
    query_chunk: int = 256,
    bank_chunk: int = 8192,
) -> Neighbours:
    """Find the `num_neighbours` rows of `bank` most similar to each query, exactly.

    Beside its arguments this holds a normalised copy of the queries, the result, and one tile of
    `query_chunk` by `bank_chunk` similarities; the bank is normalised a chunk at a time, and moved
    to the device of the queries if it lies elsewhere.

    Args:
        bank: (bank, width) features, in any floating type.
        queries: (queries, width) features.
        num_neighbours: how many to return, at most the size of the bank.
        query_chunk: rows of a tile.
        bank_chunk: columns of a tile.
    """
    if not 1 <= num_neighbours <= len(bank):
        raise InputError(
            f"{num_neighbours} neighbours were asked for, but the bank holds {len(bank)} images; "
            f"choose between 1 and {len(bank)}."
        )
    queries = _normalised(queries)
    best = Neighbours(
        queries.new_full((len(queries), num_neighbours), -torch.inf),
        queries.new_full((len(queries), num_neighbours), -1, dtype=torch.int64),
    )
    for start, stop in _growing_chunks(len(bank), max(_FIRST_TILE, 2 * num_neighbours), bank_chunk):
        keys = _normalised(bank[start:stop].to(queries.device))
        for first in range(0, len(queries), query_chunk):
            rows = slice(first, first + query_chunk)
            kept = Neighbours(best.similarities[rows], best.indices[rows])
            _fold_tile(queries[rows], keys, start, kept)
    return _nearest_first(best)


def _normalised(features: Tensor) -> Tensor:
    """Rows of `features` (n, width) in float32 with length 1; a zero row stays zero."""
    return F.normalize(features.detach().float(), dim=1)


def _growing_chunks(total: int, first: int, largest: int) -> Iterator[tuple[int, int]]:
    """Cut `total` rows into (start, stop) chunks that double from `first` up to `largest`.

    While chunks double, each brings about num_neighbours · ln 2 rows into the best of a shuffled
    bank, so no step has much to select from.
    """
    start = 0
    while start < total:
        stop = min(total, start + min(largest, max(first, start)))
        yield start, stop
        start = stop


def _fold_tile(queries: Tensor, keys: Tensor, offset: int, kept: Neighbours) -> None:
    """Fold the similarities of `queries` and `keys` into `kept`, in place.

    Args:
        queries: (rows, width), normalised.
        keys: (columns, width), normalised.
        offset: the bank row of the first key.
        kept: the best of all bank rows before `offset`, (rows, num_neighbours) each.
    """
    num_neighbours = kept.indices.shape[1]
    similarities = queries @ keys.T
    if offset == 0:
        columns = torch.arange(len(keys), device=keys.device).expand_as(similarities)
        candidates = Neighbours(similarities, columns)
    else:
        # Strictly greater: among equals the earlier bank row is already kept.
        row, column, value = _above(similarities, kept.similarities.amin(dim=1))
        if row.numel() == 0:
            return
        candidates = _padded(row, column + offset, value, len(queries))
    pool = Neighbours(
        torch.cat((kept.similarities, candidates.similarities), dim=1),
        torch.cat((kept.indices, candidates.indices), dim=1),
    )
    selected = _select(pool, num_neighbours)
    kept.similarities.copy_(selected.similarities)
    kept.indices.copy_(selected.indices)


def _above(similarities: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entries of (rows, columns) `similarities` above their row's threshold (rows,).

    Returns:
        Their row, column and value, (hits,) each, in row-major order.
    """
    padding = -similarities.shape[1] % _GROUP
    if padding:
        similarities = F.pad(similarities, (0, padding), value=-torch.inf)
    groups = similarities.view(len(similarities), -1, _GROUP)
    row, group = (groups.amax(dim=2) > thresholds[:, None]).nonzero(as_tuple=True)
    members = groups.view(-1, _GROUP).index_select(0, row * groups.shape[1] + group)
    hit, lane = (members > thresholds[row, None]).nonzero(as_tuple=True)
    return row[hit], group[hit] * _GROUP + lane, members[hit, lane]


def _padded(row: Tensor, index: Tensor, value: Tensor, num_rows: int) -> Neighbours:
    """Lay ragged hits (hits,), sorted by row, out as one dense row each, padded with -inf."""
    counts = torch.bincount(row, minlength=num_rows)
    position = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    shape = (num_rows, int(counts.max()))
    similarities = value.new_full(shape, -torch.inf)
    indices = index.new_full(shape, -1)
    similarities[row, position] = value
    indices[row, position] = index
    return Neighbours(similarities, indices)


def _select(pool: Neighbours, num_neighbours: int) -> Neighbours:
    """The `num_neighbours` best of (rows, candidates), in any order; lower indices win ties."""
    values, places = pool.similarities.topk(num_neighbours, dim=1, sorted=False)
    selected = Neighbours(values, pool.indices.gather(1, places))
    # topk chooses freely among equals, which matters only where the cut falls between equals.
    cut = values.amin(dim=1, keepdim=True)
    tied = ((pool.similarities >= cut).sum(dim=1) > num_neighbours).nonzero()[:, 0]
    if tied.numel():
        ordered = _nearest_first(Neighbours(pool.similarities[tied], pool.indices[tied]))
        selected.similarities[tied] = ordered.similarities[:, :num_neighbours]
        selected.indices[tied] = ordered.indices[:, :num_neighbours]
    return selected


def _nearest_first(found: Neighbours) -> Neighbours:
    """Sort every row by falling similarity, equals by rising index."""
    indices, order = found.indices.sort(dim=1)
    similarities, order = found.similarities.gather(1, order).sort(
        dim=1, descending=True, stable=True
    )
    return Neighbours(similarities, indices.gather(1, order))
