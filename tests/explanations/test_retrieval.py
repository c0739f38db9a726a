import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.datasets import ShapesSource
from imsvd.explanations.retrieval import (
    agreeing_units,
    label_scores,
    nearest_by_code,
    retrieval,
    without_self,
)
from tests.explanations.made_up import encodings


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 25), st.integers(1, 5), st.integers(0, 2**31))
def test_neighbors_equal_a_sort_by_shared_units_and_position(
    images: int, variables: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    bank = random.integers(0, 3, (images, variables)).astype(np.uint8)
    queries = random.integers(0, 3, (4, variables)).astype(np.uint8)
    count = int(random.integers(1, images + 1))
    found = nearest_by_code(bank, queries, count)
    for row, query in zip(found, queries, strict=True):
        shared = [sum(int(a == b) for a, b in zip(image, query, strict=True)) for image in bank]
        expected = sorted(range(images), key=lambda i, shared=shared: (-shared[i], i))  # type: ignore[misc]
        assert row.tolist() == expected[:count]


def test_a_query_is_not_its_own_neighbor() -> None:
    found = np.array([[4, 7, 2], [1, 2, 3]])
    assert without_self(found, np.array([7, 9])).tolist() == [[4, 2], [1, 2]]


def test_scores_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1])
    queries = np.array([0, 2])
    found = np.array([[2, 1, 3, 4, 5, 6, 7, 8, 9, 10], [3, 5, 0, 1, 4, 6, 7, 8, 9, 10]])
    assert label_scores(found, labels, queries) == {
        "recall_at_1": 0.5,
        "precision_at_1": 0.5,
        "recall_at_10": 1.0,
        "precision_at_10": pytest.approx((2 + 7) / 20),
    }


def test_codes_that_know_the_label_find_it_and_features_that_do_not_do_not() -> None:
    source = ShapesSource("train", count=200)
    assert source.labels is not None
    random = np.random.default_rng(0)
    codes = np.concatenate(
        [np.tile(source.labels.numpy()[:, None], 3), random.integers(0, 4, (200, 2))], 1
    )
    record = retrieval(encodings(codes, random.normal(size=(200, 6))), source)
    assert record["code"]["recall_at_1"] == 1
    chance = float((torch.bincount(source.labels) / 200).square().sum())
    assert record["cosine"]["precision_at_10"] == pytest.approx(chance, abs=0.05)
    assert record["code"]["queries_per_second"] > 0
    example = record["examples"][0]
    assert example["path"] == "shapes/train/0"
    nearest = example["neighbors"][0]
    shared = codes[0] == codes[nearest["index"]]
    assert nearest["shared_units"] == shared.sum()
    assert nearest["units"] == [[m, int(codes[0, m])] for m in np.flatnonzero(shared)]


def test_agreeing_units_are_named() -> None:
    assert agreeing_units(np.array([3, 1, 2]), np.array([3, 0, 2])) == {
        "shared_units": 2,
        "units": [[0, 3], [2, 2]],
    }


def test_without_labels_there_is_speed_and_no_recall() -> None:
    source = ShapesSource("train", count=30)
    source.labels = None
    codes = np.random.default_rng(0).integers(0, 4, (30, 3))
    record = retrieval(encodings(codes, np.random.default_rng(1).normal(size=(30, 4))), source)
    assert set(record["code"]) == {"queries_per_second"}
