"""Exact nearest neighbors by cosine similarity or Euclidean distance, in bounded memory.

The similarity matrix is made tile by tile, one matrix product each, and every tile is folded into
the `num_neighbors` best seen so far (`best_neighbors`). After the first few tiles almost nothing
passes, and the search runs at the speed of the matrix product. Nothing is approximated.

With q queries, k neighbors, features of width d and chunks of Q queries and B bank rows, a search
holds beside its arguments at most

    4·q·d + 12·q·k + 8·B·d + P·Q·(4·T + 64·(3·k + T))  bytes,     T = `TILE_COLUMNS`

which are the prepared queries, the result, a chunk of prepared bank rows and, in each of P threads, a
tile and the candidates that may have passed it; the last are far fewer unless the bank is sorted
against the search. Over W ranks each holds its share of the bank, and merging adds 64·W·Q·k bytes.

On a CPU the result depends on no chunk, thread or share. Ties go to the lower bank row, and a pair's
similarity has the same bits in every tile: BLAS sums narrow matrices in another order than wide ones,
so all tiles are padded to whole blocks. (Tested with MKL; a GPU may round by the shape of a tile.)
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from imsvd.distributed import all_gather, rank, world_size
from imsvd.errors import InputError
from imsvd.evaluation.best_neighbors import (
    Candidates,
    Neighbors,
    keep,
    nearest_first,
    select_best,
)

Distance = Literal["cosine", "euclidean"]
_Map = Callable[[Callable[[slice], None], Iterator[slice]], Iterator[None]]

TILE_COLUMNS = 1024
"""Bank rows of one matrix product: beside as many queries, a tile that stays in the cache."""

# Rows and columns of a tile are multiples of this; below some 16 BLAS takes other kernels.
_BLOCK = 64

# The first chunk has no threshold to filter by, so it is kept narrow.
_FIRST_CHUNK = 2048


def nearest_neighbors(
    bank: Tensor,
    queries: Tensor,
    num_neighbors: int,
    *,
    distance: Distance = "cosine",
    unit: float = 1.0,
    query_chunk: int = 1024,
    bank_chunk: int = 8192,
) -> Neighbors:
    """Find the `num_neighbors` rows of `bank` most similar to each query, exactly.

    The bank is prepared a chunk at a time, and moved to the device of the queries if it lies
    elsewhere. The formula for the memory needed is at the top of this module.

    Args:
        bank: (bank, width) features, in any floating type.
        queries: (queries, width) features.
        num_neighbors: how many to return, at most the size of the bank.
        distance: what makes two features similar.
        unit: the length that Euclidean distances are measured in.
        query_chunk: rows of a tile; rounded up to whole blocks.
        bank_chunk: bank rows prepared at a time; rounded likewise.
    """
    _require_enough(num_neighbors, len(bank))
    with _plain_tensors():
        search = _Search(queries, num_neighbors, distance, unit, query_chunk)
        search.add(bank, 0, bank_chunk)
        return search.result()


def nearest_in_shares(
    share: Tensor,
    queries: Tensor,
    num_neighbors: int,
    *,
    distance: Distance = "cosine",
    unit: float = 1.0,
    query_chunk: int = 1024,
    bank_chunk: int = 8192,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Neighbors:
    """`nearest_neighbors` in a bank whose rows are spread over the ranks, in their order.

    Every rank must call this, with the same queries, and gets the same result, whose indices count
    the rows of all shares one after the other.

    Args:
        share: (own, width) the rows of this rank; there may be none.
        queries: (queries, width) features, the same on every rank, on a device that the ranks can
            communicate on.
        num_neighbors: how many to return, at most the rows of all shares together.
        distance: what makes two features similar.
        unit: the length that Euclidean distances are measured in.
        query_chunk: rows of a tile, and of what is merged at a time.
        bank_chunk: bank rows prepared at a time.
        progress: called with (rows done, rows in total) of this rank's share after every chunk.
    """
    sizes = all_gather(torch.tensor([len(share)], device=queries.device)).tolist()
    _require_enough(num_neighbors, sum(sizes))
    with _plain_tensors():
        search = _Search(queries, num_neighbors, distance, unit, query_chunk)
        search.add(share, sum(sizes[: rank()]), bank_chunk, progress)
        if world_size() > 1:
            search.merge_over_ranks(query_chunk)
        return search.result()


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """Make tensors that every thread may write to: inference mode holds in one thread only."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _require_enough(num_neighbors: int, rows: int) -> None:
    if not 1 <= num_neighbors <= rows:
        raise InputError(
            f"{num_neighbors} neighbors were asked for, but the bank holds {rows} images; "
            f"choose between 1 and {rows}."
        )


class _Search:
    """The best bank rows seen so far of every query."""

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
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """Search `bank` (rows, width), whose first row has the number `offset`."""
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
        """Replace the best of this rank by the best of all ranks.

        The chunks are not those of the search, which follow from the threads that a rank has.
        """
        for first in range(0, self._count, query_chunk):
            kept = self._rows(slice(first, first + query_chunk))
            gathered = [all_gather(part.T.contiguous()).T for part in kept]
            keep(kept, select_best(Neighbors(*gathered), kept.indices.shape[1]))

    def result(self) -> Neighbors:
        """All neighbors, nearest first."""
        for rows in self._query_chunks():
            kept = self._rows(rows)
            keep(kept, nearest_first(kept))
            if self._distance == "euclidean":
                lengths = self._queries[rows][: len(kept.indices)].square().sum(dim=1)
                # No distance is below zero, but a difference of large numbers may be.
                kept.similarities.sub_(lengths[:, None] / 2).clamp_(max=0)
        return self._best

    def _prepared(self, features: Tensor) -> Tensor:
        """Float32 rows to be multiplied, with rows of zeros after them up to whole blocks."""
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
        """Fold the similarities of some queries to a chunk of the bank into their best."""
        queries, kept = self._queries[rows], self._rows(rows)
        candidates = Candidates(kept, nothing_kept=chunk.is_first)
        buffer = self._tiles.get()
        for start in range(0, len(chunk.keys), TILE_COLUMNS):
            keys = chunk.keys[start : start + TILE_COLUMNS]
            tile = buffer[: len(queries) * len(keys)].view(len(queries), len(keys))
            torch.mm(queries, keys.T, out=tile)
            if chunk.shift is not None:
                tile.sub_(chunk.shift[start : start + TILE_COLUMNS])
            num_columns = min(len(keys), chunk.num_keys - start)
            candidates.add(tile[: len(kept.indices)], num_columns, chunk.offset + start)
        candidates.fold()
        self._tiles.put(buffer)


class _Chunk(NamedTuple):
    """Consecutive rows of the bank, ready to be multiplied.

    Attributes:
        keys: (whole blocks, width), rows of zeros at the end.
        shift: (whole blocks,) what is subtracted from the products, if anything.
        num_keys: how many of the keys are rows of the bank.
        offset: the number of the first of them.
        is_first: whether nothing was searched before.
    """

    keys: Tensor
    shift: Tensor | None
    num_keys: int
    offset: int
    is_first: bool


def _num_threads(device: torch.device) -> int:
    """How many chunks of queries are compared at a time; a GPU is busy with one."""
    return torch.get_num_threads() if device.type == "cpu" else 1


@contextmanager
def _mapping(threads: int) -> Iterator[_Map]:
    """Give a `map` that calls a function for `threads` chunks of queries at a time.

    Chunks have nothing to do with each other. A thread for each is faster than all threads for one:
    most steps of a selection are too small to be shared.
    """
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield pool.map
        finally:
            # What a thread sets is what threads to come begin with.
            torch.set_num_threads(threads)


def _whole_blocks(rows: int) -> int:
    return -(-max(rows, 1) // _BLOCK) * _BLOCK


def _growing_chunks(total: int, first: int, largest: int) -> Iterator[tuple[int, int]]:
    """Cut `total` rows into (start, stop) chunks that double from `first` up to `largest`.

    While chunks double, each brings about num_neighbors rows into the best of a shuffled bank, so
    no step has much to select from.
    """
    start = 0
    while start < total:
        stop = min(total, start + min(largest, max(first, start)))
        yield start, stop
        start = stop
