"""Exact nearest neighbors by cosine similarity or Euclidean distance, in bounded memory.

The search computes the similarity matrix tile by tile, one matrix product each. Selecting from whole
tiles would cost as much as computing them, so each tile is first compared with every query's worst
kept neighbor; the entries that pass are collected and merged into the kept neighbors in bulk. After
the first few tiles almost nothing passes, and the search runs at the speed of the matrix product.
Nothing is approximated.

With q queries, k neighbors, features of width d and chunks of Q queries and B bank rows, a search
allocates at most

    4·q·d + 12·q·k + 8·B·d + P·Q·(4·T + 64·(3·k + T))  bytes,     T = `TILE_COLUMNS`

for the prepared queries, the result, a chunk of prepared bank rows and, in each of P threads, a tile
and its candidates; the last term is the worst case, a bank in order of rising similarity. With W
ranks, each holds its share of the bank, and merging adds 64·W·Q·k bytes.

On a CPU the result does not depend on chunks, threads or shares. Ties go to the lower bank row, and
a pair's similarity has the same bits in every tile: BLAS sums narrow matrices in another order than
wide ones, so all tiles are padded to whole blocks. (Tested with MKL; on a GPU rounding may depend on
the tile's shape.)
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from imsvd.distributed import all_gather, rank
from imsvd.errors import InputError

Distance = Literal["cosine", "euclidean"]
_Map = Callable[[Callable[[slice], None], Iterator[slice]], Iterator[None]]

TILE_COLUMNS = 1024
"""Bank rows per matrix product; with as many queries, a tile fits into the cache."""

# Rows and columns of a tile are multiples of this; below about 16, BLAS uses other kernels.
_BLOCK = 64

# The first chunk has no threshold to filter by, so it is narrow.
_FIRST_CHUNK = 2048

# Columns compared through their common maximum: wide enough to skip most of a tile with one
# vectorized reduction, narrow enough that a group with a hit adds few others.
_GROUP = 32


class Neighbors(NamedTuple):
    """Nearest bank rows of every query, nearest first; ties go to the lower bank row.

    Attributes:
        similarities: (queries, num_neighbors) float32: the cosine, or minus half the squared
            Euclidean distance, which for unit vectors is the cosine minus 1.
        indices: (queries, num_neighbors) int64 rows of the bank.
    """

    similarities: Tensor
    indices: Tensor


def nearest_neighbors(  # noqa: PLR0913 - independent keyword arguments
    bank: Tensor,
    queries: Tensor,
    num_neighbors: int,
    *,
    distance: Distance = "cosine",
    unit: float = 1.0,
    query_chunk: int = 1024,
    bank_chunk: int = 8192,
    shared: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Neighbors:
    """Find the `num_neighbors` rows of `bank` most similar to each query, exactly.

    The bank is prepared in chunks on the queries' device. The module docstring gives the memory needed.

    Args:
        bank: (bank, width) features, in any floating type.
        queries: (queries, width) features.
        num_neighbors: neighbors per query, at most the size of the bank.
        distance: cosine similarity or Euclidean distance.
        unit: unit of length for Euclidean distances.
        query_chunk: rows of a tile; rounded up to whole blocks.
        bank_chunk: bank rows prepared at a time; rounded likewise.
        shared: whether `bank` is only this rank's share, possibly empty. Every rank must then call
            this with the same queries, and gets the same result; indices count the rows of all
            shares in rank order.
        progress: called with (rows done, rows in total) of `bank` after every chunk.
    """
    sizes, own = [len(bank)], 0
    if shared:
        sizes = all_gather(torch.tensor(sizes, device=queries.device)).tolist()
        own = rank()
    if not 1 <= num_neighbors <= sum(sizes):
        raise InputError(
            f"cannot find {num_neighbors} neighbors in a bank of {sum(sizes)} images; "
            f"choose between 1 and {sum(sizes)}."
        )
    with _plain_tensors():
        search = _Search(queries, num_neighbors, distance, unit, query_chunk)
        search.add(bank, sum(sizes[:own]), bank_chunk, progress)
        if len(sizes) > 1:
            search.merge_over_ranks(query_chunk)
        return search.result()


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """Create tensors that every thread may write to; inference mode applies to one thread only."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class _Search:
    """Best bank rows found so far for every query."""

    def __init__(
        self,
        queries: Tensor,
        num_neighbors: int,
        distance: Distance,
        unit: float,
        query_chunk: int,
    ) -> None:
        self._distance, self._unit = distance, unit
        self._count = len(queries)
        self._queries = self._prepared(queries)
        self._threads = _num_threads(self._queries.device)
        self._chunk = _whole_blocks(min(query_chunk, -(-len(self._queries) // self._threads)))
        self._tiles: SimpleQueue[Tensor] = SimpleQueue()
        for _ in range(self._threads):
            self._tiles.put(self._queries.new_empty(self._chunk * TILE_COLUMNS))
        shape = (self._count, num_neighbors)
        self._best = Neighbors(
            self._queries.new_full(shape, -torch.inf),
            self._queries.new_full(shape, -1, dtype=torch.int64),
        )

    def add(
        self,
        bank: Tensor,
        offset: int,
        bank_chunk: int,
        progress: Callable[[int, int], None],
    ) -> None:
        """Search `bank` (rows, width), whose rows are numbered from `offset` on."""
        first = _whole_blocks(max(_FIRST_CHUNK, 2 * self._best.indices.shape[1]))
        with _mapping(self._threads) as mapped:
            for start, stop in _growing_chunks(len(bank), first, _whole_blocks(bank_chunk)):
                keys = self._prepared(bank[start:stop].to(self._queries.device))
                shift = keys.square().sum(dim=1).div_(2) if self._distance == "euclidean" else None
                chunk = _Chunk(keys, shift, stop - start, start + offset, start == 0)
                for _ in mapped(partial(self._compare, chunk), self._query_chunks()):
                    pass
                progress(stop, len(bank))

    def merge_over_ranks(self, query_chunk: int) -> None:
        """Replace this rank's best rows by the best of all ranks.

        The search's own chunks depend on a rank's threads, so merging uses `query_chunk`.
        """
        for first in range(0, self._count, query_chunk):
            kept = self._rows(slice(first, first + query_chunk))
            gathered = [all_gather(part.T.contiguous()).T for part in kept]
            _keep(kept, _select_best(Neighbors(*gathered), kept.indices.shape[1]))

    def result(self) -> Neighbors:
        """Return all neighbors, nearest first."""
        for rows in self._query_chunks():
            kept = self._rows(rows)
            _keep(kept, _nearest_first(kept))
            if self._distance == "euclidean":
                lengths = self._queries[rows][: len(kept.indices)].square().sum(dim=1)
                # Rounding can push a squared distance slightly below zero.
                kept.similarities.sub_(lengths[:, None] / 2).clamp_(max=0)
        return self._best

    def _prepared(self, features: Tensor) -> Tensor:
        """Return scaled float32 rows, padded with zeros to whole blocks."""
        features = features.detach()
        prepared = features.new_zeros(
            (_whole_blocks(len(features)), features.shape[1]), dtype=torch.float32
        )
        if self._distance == "euclidean":
            torch.div(features.float(), self._unit, out=prepared[: len(features)])
            return prepared
        features = features.float()
        lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_min_(1e-12)
        torch.div(features, lengths, out=prepared[: len(features)])
        return prepared

    def _query_chunks(self) -> Iterator[slice]:
        return (
            slice(first, first + self._chunk) for first in range(0, len(self._queries), self._chunk)
        )

    def _rows(self, rows: slice) -> Neighbors:
        return Neighbors(self._best.similarities[rows], self._best.indices[rows])

    def _compare(self, chunk: "_Chunk", rows: slice) -> None:
        """Merge the similarities of some queries to a chunk of the bank into their best rows."""
        queries, kept = self._queries[rows], self._rows(rows)
        candidates = _Candidates(kept, nothing_kept=chunk.is_first)
        buffer = self._tiles.get()
        for start in range(0, len(chunk.keys), TILE_COLUMNS):
            keys = chunk.keys[start : start + TILE_COLUMNS]
            tile = buffer[: len(queries) * len(keys)].view(len(queries), len(keys))
            torch.mm(queries, keys.T, out=tile)
            if chunk.shift is not None:
                tile.sub_(chunk.shift[start : start + TILE_COLUMNS])
            num_columns = min(len(keys), chunk.num_keys - start)
            candidates.add(tile[: len(kept.indices)], num_columns, chunk.offset + start)
        candidates.merge()
        self._tiles.put(buffer)


class _Chunk(NamedTuple):
    """Consecutive rows of the bank, prepared for multiplication.

    Attributes:
        keys: (whole blocks, width), padded with rows of zeros.
        shift: (whole blocks,) subtracted from the products; None for cosines.
        num_keys: number of keys that are bank rows.
        offset: number of the first bank row.
        is_first: whether this is the first chunk of the search.
    """

    keys: Tensor
    shift: Tensor | None
    num_keys: int
    offset: int
    is_first: bool


def _num_threads(device: torch.device) -> int:
    """Return how many chunks of queries to compare concurrently; one keeps a GPU busy."""
    return torch.get_num_threads() if device.type == "cpu" else 1


@contextmanager
def _mapping(threads: int) -> Iterator[_Map]:
    """Yield a `map` that processes `threads` chunks of queries concurrently.

    One thread per chunk is faster than all threads on one chunk: most steps of a selection are too
    small to parallelize.
    """
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield pool.map
        finally:
            # set_num_threads(1) in a worker also changes the default of new threads.
            torch.set_num_threads(threads)


def _whole_blocks(rows: int) -> int:
    return -(-max(rows, 1) // _BLOCK) * _BLOCK


def _growing_chunks(total: int, first: int, largest: int) -> Iterator[tuple[int, int]]:
    """Cut `total` rows into (start, stop) chunks that double from `first` up to `largest`.

    In a shuffled bank, each doubling adds about num_neighbors rows to the best, so no step has many
    candidates to select from.
    """
    start = 0
    while start < total:
        stop = min(total, start + min(largest, max(first, start)))
        yield start, stop
        start = stop


class _Hits(NamedTuple):
    """Entries of a tile above their row's threshold, and their positions in the row's candidates."""

    row: Tensor
    position: Tensor
    bank_row: Tensor
    value: Tensor


class _Candidates:
    """Entries better than the worst `kept` neighbor, collected until they are merged."""

    def __init__(self, kept: Neighbors, *, nothing_kept: bool) -> None:
        self._kept, self._nothing_kept = kept, nothing_kept
        self._thresholds = kept.similarities.amin(dim=1)
        self._hits: list[_Hits] = []
        self._counts = torch.zeros_like(kept.indices[:, 0])

    def add(self, tile: Tensor, num_columns: int, offset: int) -> None:
        """Collect the entries of a tile that are strictly better than the worst kept neighbor.

        Among equals, the earlier bank row is already kept.

        Args:
            tile: (rows, whole blocks) similarities.
            num_columns: number of columns that are bank rows.
            offset: number of the first bank row.
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
            self.merge()

    def _keep_best(self, tile: Tensor, offset: int) -> None:
        """Keep the best entries of the first tile, for which there is no threshold."""
        columns = torch.arange(offset, offset + tile.shape[1], device=tile.device)
        pool = Neighbors(tile, columns.expand_as(tile))
        self._replace(_select_best(pool, self._kept.indices.shape[1]))

    def _replace(self, found: Neighbors) -> None:
        _keep(self._kept, found)
        self._thresholds = self._kept.similarities.amin(dim=1)
        self._nothing_kept = False

    def merge(self) -> None:
        """Merge the collected entries into the kept neighbors."""
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
        self._replace(_select_best(pool, num_neighbors))


def _above(similarities: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the entries of `similarities` (rows, columns) above their row's threshold (rows,).

    Returns:
        Row, column and value of each, (hits,), in row-major order.
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


def _select_best(pool: Neighbors, num_neighbors: int) -> Neighbors:
    """Return the `num_neighbors` best of (rows, candidates), unordered; ties go to lower indices."""
    values, places = pool.similarities.topk(num_neighbors, dim=1, sorted=False)
    selected = Neighbors(values, pool.indices.gather(1, places))
    # topk picks arbitrarily among equals, which matters only where the cut falls between them.
    cut = values.amin(dim=1, keepdim=True)
    tied = ((pool.similarities >= cut).sum(dim=1) > num_neighbors).nonzero()[:, 0]
    if tied.numel():
        ordered = _nearest_first(Neighbors(pool.similarities[tied], pool.indices[tied]))
        selected.similarities[tied] = ordered.similarities[:, :num_neighbors]
        selected.indices[tied] = ordered.indices[:, :num_neighbors]
    return selected


def _keep(kept: Neighbors, found: Neighbors) -> None:
    """Overwrite the kept neighbors in place."""
    kept.similarities.copy_(found.similarities)
    kept.indices.copy_(found.indices)


def _nearest_first(found: Neighbors) -> Neighbors:
    """Sort every row by decreasing similarity, and equals by increasing index."""
    indices, order = found.indices.sort(dim=1)
    similarities, order = found.similarities.gather(1, order).sort(
        dim=1, descending=True, stable=True
    )
    return Neighbors(similarities, indices.gather(1, order))
