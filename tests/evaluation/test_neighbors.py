import weakref
from typing import Any

import faiss
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from imsvd.distributed import rank
from imsvd.errors import InputError
from imsvd.evaluation.neighbors import (
    TILE_COLUMNS,
    Distance,
    Neighbors,
    nearest_neighbors,
)
from tests import gloo


def literal_search(bank: Tensor, queries: Tensor, num_neighbors: int) -> list[list[int]]:
    """Sort the whole bank for each query, by falling similarity and then rising row."""
    similarities = (F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T).tolist()
    ranked = [sorted((-similarity, i) for i, similarity in enumerate(row)) for row in similarities]
    return [[i for _, i in row[:num_neighbors]] for row in ranked]


def signs(rows: int, width: int, seed: int) -> Tensor:
    """Vectors of ±1: with a width of 4 or 16 all cosines are exact and most of them are tied."""
    draw = torch.randint(0, 2, (rows, width), generator=torch.Generator().manual_seed(seed))
    return draw * 2.0 - 1.0


def normal(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@given(
    rows=st.integers(1, 300),
    share=st.floats(0, 1),
    query_chunk=st.integers(1, 200),
    bank_chunk=st.integers(1, 300),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=40, deadline=None)
def test_ties_go_to_the_lowest_row_whatever_the_chunks(
    rows: int,
    share: float,
    query_chunk: int,
    bank_chunk: int,
    seed: int,
) -> None:
    bank, queries = signs(rows, 4, seed), signs(70, 4, seed + 1)
    wanted = 1 + round(share * (rows - 1))
    found = nearest_neighbors(bank, queries, wanted, query_chunk=query_chunk, bank_chunk=bank_chunk)
    assert found.indices.tolist() == literal_search(bank, queries, wanted)


@pytest.mark.parametrize(("query_chunk", "bank_chunk"), [(7, 300), (64, 1000), (1000, 9000)])
@pytest.mark.parametrize("order", ["shuffled", "rising", "falling"])
@pytest.mark.parametrize("threads", [1, 3])
def test_filtered_tiles_lose_nothing(
    query_chunk: int, bank_chunk: int, order: str, threads: int
) -> None:
    # Several tiles beyond the first; a rising bank makes every tile better than all before it.
    bank, queries = normal(9003, 16, seed=0), normal(133, 16, seed=1)
    similarity = F.normalize(bank, dim=1) @ F.normalize(queries[0], dim=0)
    if order != "shuffled":
        bank = bank[similarity.argsort(descending=order == "falling")]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = nearest_neighbors(bank, queries, 60, query_chunk=query_chunk, bank_chunk=bank_chunk)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    exact = F.normalize(queries.double(), dim=1) @ F.normalize(bank.double(), dim=1).T
    expected = exact.topk(60, dim=1)
    torch.testing.assert_close(found.similarities, expected.values.float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(exact.gather(1, found.indices), expected.values, rtol=0, atol=1e-6)
    assert all(len(set(row)) == 60 for row in found.indices.tolist())


def test_similarities_equal_those_of_faiss() -> None:
    bank, queries = (F.normalize(normal(rows, 24, rows), dim=1) for rows in (5000, 200))
    index = faiss.IndexFlatIP(24)
    index.add(bank.numpy())
    similarities, indices = index.search(queries.numpy(), 200)
    found = nearest_neighbors(bank, queries, 200)
    torch.testing.assert_close(
        found.similarities, torch.from_numpy(similarities), rtol=0, atol=1e-6
    )
    # Neighbors whose similarities differ by rounding only may have changed places.
    same = (found.indices == torch.from_numpy(indices)).double().mean()
    assert same > 0.999


@pytest.mark.parametrize("unit", [1.0, 2.5])
def test_euclidean_distances_equal_the_definition(unit: float) -> None:
    bank, queries = normal(3001, 10, 0) + 1, 2 * normal(70, 10, 1)
    exact = -((queries.double()[:, None] - bank.double()) / unit).square().sum(dim=2) / 2
    expected = exact.topk(30, dim=1)
    found = nearest_neighbors(
        bank, queries, 30, distance="euclidean", unit=unit, query_chunk=64, bank_chunk=500
    )
    assert found.indices.tolist() == expected.indices.tolist()
    torch.testing.assert_close(found.similarities, expected.values.float(), rtol=1e-5, atol=1e-5)


def test_the_distance_of_a_vector_to_itself_is_never_below_zero() -> None:
    bank = normal(300, 64, 0) * 100
    found = nearest_neighbors(bank, bank, 1, distance="euclidean")
    assert found.indices[:, 0].tolist() == list(range(300))
    assert (found.similarities <= 0).all()


def test_a_collapsed_encoder_names_the_first_rows() -> None:
    found = nearest_neighbors(torch.ones(4000, 4), torch.ones(3, 4), 5, bank_chunk=512)
    assert found.indices.tolist() == [[0, 1, 2, 3, 4]] * 3


def test_length_does_not_matter_and_zero_rows_are_allowed() -> None:
    bank = torch.tensor([[0.0, 0.0], [1000.0, 0.0], [0.0, 0.001], [-3.0, 0.0]])
    found = nearest_neighbors(bank, torch.tensor([[0.5, 0.0]]), 4)
    assert found.indices.tolist() == [[1, 0, 2, 3]]
    assert found.similarities.tolist() == [[1.0, 0.0, 0.0, -1.0]]


def test_half_precision_banks_are_compared_in_float32() -> None:
    bank, queries = normal(200, 8, seed=0).half(), normal(5, 8, seed=1).half()
    found = nearest_neighbors(bank, queries, 3)
    assert found.similarities.dtype == torch.float32
    assert found.indices.tolist() == literal_search(bank.float(), queries.float(), 3)


def test_features_of_inference_mode_may_be_searched() -> None:
    with torch.inference_mode():
        bank, queries = normal(200, 8, seed=0), normal(5, 8, seed=1)
        inside = nearest_neighbors(bank, queries, 3).indices
    assert inside.tolist() == literal_search(bank.clone(), queries.clone(), 3)


def test_more_neighbors_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match=r"11 neighbors.*10 images"):
        nearest_neighbors(torch.ones(10, 2), torch.ones(1, 2), 11)


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {x.untyped_storage()._cdata for x in tree_leaves(args) if isinstance(x, Tensor)}
        result = func(*args, **(kwargs or {}))
        for output in tree_leaves(result):
            if isinstance(output, Tensor):
                storage = output.untyped_storage()
                if storage._cdata not in inputs | self._seen:
                    self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)

        def forget() -> None:
            self._seen.discard(key)
            self.live -= size

        weakref.finalize(storage, forget)


@pytest.mark.parametrize("order", ["shuffled", "rising"])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_memory_stays_below_the_formula(order: str, distance: Distance) -> None:
    q, k, d, query_chunk, bank_chunk, rows = 320, 20, 48, 64, 512, 40_000
    bank, queries = normal(rows, d, 0), normal(q, d, 1)
    if order == "rising":
        bank = bank[(bank @ queries.mean(dim=0)).argsort()]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with LiveMemory() as memory:
            nearest_neighbors(
                bank, queries, k, distance=distance, query_chunk=query_chunk, bank_chunk=bank_chunk
            )
    finally:
        torch.set_num_threads(before)
    tile = query_chunk * (4 * TILE_COLUMNS + 64 * (3 * k + TILE_COLUMNS))
    assert memory.peak <= 4 * q * d + 12 * q * k + 8 * bank_chunk * d + tile
    # Neither a second bank nor a similarity matrix would fit into that.
    assert memory.peak < bank.nbytes < 4 * q * rows
    assert memory.peak > 4 * query_chunk * TILE_COLUMNS


def search_share(
    bank: Tensor, queries: Tensor, sizes: list[int], k: int, distance: Distance
) -> Neighbors:
    share = torch.split(bank, sizes)[rank()]
    return nearest_neighbors(share, queries, k, distance=distance, query_chunk=100, shared=True)


@pytest.mark.parametrize("sizes", [[1300, 1203], [2501, 2], [900, 0, 1603], [833, 835, 835]])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_shares_of_several_processes_give_the_bits_of_one(
    sizes: list[int], distance: Distance
) -> None:
    # Half of the bank is tied with the other half, across all shares.
    half = normal(1252, 37, 0)
    bank, queries = torch.cat((half, half))[: sum(sizes)], normal(133, 37, 1)
    alone = nearest_neighbors(bank, queries, 50, distance=distance)
    for found in gloo.run(len(sizes), search_share, bank, queries, sizes, 50, distance):
        assert torch.equal(found.indices, alone.indices)
        assert torch.equal(found.similarities, alone.similarities)


def test_one_process_without_a_group_holds_the_only_share() -> None:
    bank, queries = normal(500, 8, 0), normal(20, 8, 1)
    shared = nearest_neighbors(bank, queries, 7, shared=True)
    alone = nearest_neighbors(bank, queries, 7)
    assert torch.equal(shared.indices, alone.indices)
    assert torch.equal(shared.similarities, alone.similarities)
