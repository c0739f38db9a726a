import itertools

import pytest
import torch

from imsvd.bench.codes.retrieval import (
    VOTERS,
    Database,
    Queries,
    correct_votes,
    draw_nearest,
    precision,
    retrieval_measures,
)

SIMILARITY = torch.tensor([[3.0, 2, 2, 1, 2, 0], [1, 1, 1, 1, 1, 1], [5, 4, 3, 2, 1, 0]])
LABELS = torch.tensor([0, 0, 1, 1, 2, 0])
WANTED = torch.tensor([0, 1, 1])


def every_order(similarity: torch.Tensor) -> list[list[int]]:
    """All orders of the images by descending similarity; equals in every order."""
    orders = itertools.permutations(range(len(similarity)))
    values = similarity.tolist()
    return [
        list(order)
        for order in orders
        if all(values[a] >= values[b] for a, b in itertools.pairwise(order))
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_precision_is_the_mean_over_all_orders_of_equals(count: int) -> None:
    found = precision(SIMILARITY, WANTED[:, None] == LABELS, SIMILARITY.topk(count).values)
    for row, wanted, value in zip(SIMILARITY, WANTED, found, strict=True):
        orders = every_order(row)
        hits = [sum(int(LABELS[i] == wanted) for i in order[:count]) / count for order in orders]
        assert value == pytest.approx(sum(hits) / len(hits), abs=1e-6)


def test_every_order_of_equals_is_drawn_equally_often() -> None:
    repeated = SIMILARITY[:1].repeat(6000, 1)
    best = repeated.topk(3).values
    drawn = draw_nearest(repeated, best, torch.Generator().manual_seed(0))
    assert (drawn == 0).any(1).all()
    shares = [float((drawn == image).any(1).double().mean()) for image in (1, 2, 4)]
    assert shares == pytest.approx([2 / 3] * 3, abs=0.03)
    assert not ((drawn == 3) | (drawn == 5)).any()


def test_without_equals_the_nearest_are_those_of_a_sort() -> None:
    similarity = torch.rand(7, 30, generator=torch.Generator().manual_seed(1))
    best = similarity.topk(4).values
    drawn = draw_nearest(similarity, best, torch.Generator())
    assert torch.equal(drawn.sort(1).values, similarity.topk(4).indices.sort(1).values)


def test_a_divided_vote_counts_in_part() -> None:
    votes = torch.tensor([[0, 0, 1], [0, 1, 2], [1, 1, 2], [0, 1, 1]])
    found = correct_votes(votes, torch.tensor([0, 2, 0, 3]))
    torch.testing.assert_close(found, torch.tensor([1, 1 / 3, 0, 0]))


def test_codes_that_say_nothing_find_every_class_as_often_as_it_occurs() -> None:
    """A database sorted by class would otherwise be right for its first class only."""
    labels = torch.arange(200) // 100
    database = Database(torch.ones(1, 1), torch.zeros(200, dtype=torch.long), labels)
    nearest = torch.arange(10).expand(200, 10)
    queries = Queries(torch.ones(200, 1), labels, nearest)
    found = retrieval_measures(database, queries, seed=0)
    assert found["p1"] == pytest.approx(50)
    assert found["p10"] == pytest.approx(50)
    assert found["recall"] == pytest.approx(100 * 10 / 200, rel=1e-5)
    assert 35 < found["knn20"] < 65


def test_measures_of_known_neighbors() -> None:
    """Two far groups of 30: everything is right, and recall is what cosine neighbors say."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.tensor([[9.0, 0], [0, 9]]).repeat_interleave(30, 0)
    points = centers + torch.rand(60, 2, generator=generator)
    labels = torch.arange(60) // 30
    nearest = (points @ points.T).topk(10).indices
    assert VOTERS <= 30
    database = Database(points, torch.arange(60), labels)
    found = retrieval_measures(database, Queries(points, labels, nearest), seed=0)
    assert found == pytest.approx(dict.fromkeys(found, 100.0))
    other = Queries(points, labels, (nearest + 30) % 60)
    assert retrieval_measures(database, other, seed=0)["recall"] < 1
