import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd.errors import InputError
from imsvd.evaluation.neighbours import nearest_neighbours


def literal_search(bank: Tensor, queries: Tensor, num_neighbours: int) -> list[list[int]]:
    """Sort the whole bank for each query, by falling similarity and then rising row."""
    similarities = (F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T).tolist()
    ranked = [sorted((-similarity, i) for i, similarity in enumerate(row)) for row in similarities]
    return [[i for _, i in row[:num_neighbours]] for row in ranked]


def signs(rows: int, width: int, seed: int) -> Tensor:
    """Vectors of ±1: with a width of 4 or 16 all cosines are exact and most of them are tied."""
    draw = torch.randint(0, 2, (rows, width), generator=torch.Generator().manual_seed(seed))
    return draw * 2.0 - 1.0


def normal(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@given(
    rows=st.integers(1, 80),
    share=st.floats(0, 1),
    query_chunk=st.integers(1, 9),
    bank_chunk=st.integers(1, 90),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_ties_go_to_the_lowest_row_whatever_the_chunks(
    rows: int,
    share: float,
    query_chunk: int,
    bank_chunk: int,
    seed: int,
) -> None:
    bank, queries = signs(rows, 4, seed), signs(11, 4, seed + 1)
    wanted = 1 + round(share * (rows - 1))
    found = nearest_neighbours(
        bank, queries, wanted, query_chunk=query_chunk, bank_chunk=bank_chunk
    )
    assert found.indices.tolist() == literal_search(bank, queries, wanted)


@pytest.mark.parametrize(("query_chunk", "bank_chunk"), [(7, 300), (64, 1000), (1000, 5000)])
@pytest.mark.parametrize("order", ["shuffled", "rising", "falling"])
def test_filtered_tiles_lose_nothing(query_chunk: int, bank_chunk: int, order: str) -> None:
    # Several tiles beyond the first; a rising bank makes every tile better than all before it.
    bank, queries = normal(5003, 16, seed=0), normal(33, 16, seed=1)
    similarity = F.normalize(bank, dim=1) @ F.normalize(queries[0], dim=0)
    if order != "shuffled":
        bank = bank[similarity.argsort(descending=order == "falling")]
    found = nearest_neighbours(bank, queries, 60, query_chunk=query_chunk, bank_chunk=bank_chunk)
    exact = F.normalize(queries.double(), dim=1) @ F.normalize(bank.double(), dim=1).T
    expected = exact.topk(60, dim=1)
    torch.testing.assert_close(found.similarities, expected.values.float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(exact.gather(1, found.indices), expected.values, rtol=0, atol=1e-6)
    assert all(len(set(row)) == 60 for row in found.indices.tolist())


def test_a_collapsed_encoder_names_the_first_rows() -> None:
    found = nearest_neighbours(torch.ones(4000, 4), torch.ones(3, 4), 5, bank_chunk=512)
    assert found.indices.tolist() == [[0, 1, 2, 3, 4]] * 3


def test_length_does_not_matter_and_zero_rows_are_allowed() -> None:
    bank = torch.tensor([[0.0, 0.0], [1000.0, 0.0], [0.0, 0.001], [-3.0, 0.0]])
    found = nearest_neighbours(bank, torch.tensor([[0.5, 0.0]]), 4)
    assert found.indices.tolist() == [[1, 0, 2, 3]]
    assert found.similarities.tolist() == [[1.0, 0.0, 0.0, -1.0]]


def test_half_precision_banks_are_compared_in_float32() -> None:
    bank, queries = normal(200, 8, seed=0).half(), normal(5, 8, seed=1).half()
    found = nearest_neighbours(bank, queries, 3)
    assert found.similarities.dtype == torch.float32
    assert found.indices.tolist() == literal_search(bank.float(), queries.float(), 3)


def test_more_neighbours_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match=r"11 neighbours.*10 images"):
        nearest_neighbours(torch.ones(10, 2), torch.ones(1, 2), 11)


def test_memory_is_bounded_by_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    multiply = Tensor.__matmul__

    def watched(left: Tensor, right: Tensor) -> Tensor:
        nonlocal largest
        product = multiply(left, right)
        largest = max(largest, product.numel())
        return product

    monkeypatch.setattr(Tensor, "__matmul__", watched)
    nearest_neighbours(normal(9000, 4, 0), normal(500, 4, 1), 5, query_chunk=50, bank_chunk=2048)
    assert 50 * 1024 <= largest <= 50 * 2048
