import math
from collections import defaultdict

import faiss
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from imsvd.distributed import rank
from imsvd.errors import InputError
from imsvd.evaluation import (
    Features,
    KNNSettings,
    knn,
    knn_attributes,
    knn_of_shares,
    knn_predict,
)
from imsvd.evaluation import usable_neighbors as trimmed
from tests import gloo


def clusters(rows: int, seed: int, num_classes: int = 7, width: int = 12) -> tuple[Tensor, Tensor]:
    """Overlapping classes, so that accuracies lie well between chance and 100 %."""
    centers = torch.randn(num_classes, width, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, num_classes, (rows,), generator=generator)
    features = centers[labels] + 2 * torch.randn(rows, width, generator=generator)
    return features, labels


def literal_vote(
    train: Tensor, labels: Tensor, test: Tensor, k: int, temperature: float
) -> list[int]:
    """The definition, one query and one neighbor at a time, in Python floats."""
    predictions = []
    for query in test.double():
        cosines = torch.cosine_similarity(train.double(), query[None], dim=1).tolist()
        nearest = sorted(range(len(cosines)), key=lambda i: (-cosines[i], i))[:k]
        tally: defaultdict[int, float] = defaultdict(float)
        for i in nearest:
            tally[int(labels[i])] += math.exp(cosines[i] / temperature)
        predictions.append(max(sorted(tally), key=tally.__getitem__))
    return predictions


@pytest.mark.parametrize("k", [1, 20, 200, 503])
def test_predictions_equal_scikit_learn(k: int) -> None:
    train, labels = clusters(503, seed=0)
    test, _ = clusters(211, seed=1)

    def weights(distances: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.exp((1 - distances) / 0.07)

    oracle = KNeighborsClassifier(k, weights=weights, algorithm="brute", metric="cosine")
    expected = oracle.fit(train.double(), labels).predict(test.double())
    settings = KNNSettings(neighbors=(k,), query_chunk=37, bank_chunk=64)
    assert knn_predict(train, labels, test, settings)[k].tolist() == expected.tolist()


@pytest.mark.parametrize(("query_chunk", "bank_chunk"), [(1, 1), (7, 13), (256, 8192)])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_several_k_in_one_pass_equal_the_literal_vote(
    query_chunk: int, bank_chunk: int, temperature: float
) -> None:
    train, labels = clusters(97, seed=2)
    test, _ = clusters(23, seed=3)
    settings = KNNSettings(
        neighbors=(5, 97, 20),
        temperature=temperature,
        query_chunk=query_chunk,
        bank_chunk=bank_chunk,
    )
    predictions = knn_predict(train, labels, test, settings)
    assert list(predictions) == [5, 97, 20]
    for k, found in predictions.items():
        assert found.tolist() == literal_vote(train, labels, test, k, temperature)


def test_accuracy_of_a_case_computed_by_hand() -> None:
    # The query sees one image of class 4 at cosine 1 and two of class 2 at cosine 0.6. Near votes
    # outweigh many at temperature 0.07; at temperature 10 two votes beat one.
    train = torch.tensor([[2.0, 0.0], [3.0, 4.0], [3.0, -4.0]])
    labels = torch.tensor([4, 2, 2])
    test, truth = torch.tensor([[5.0, 0.0], [7.0, 0.0]]), torch.tensor([4, 2])
    sharp = knn(train, labels, test, truth, KNNSettings(neighbors=(1, 3)))
    assert sharp == {"knn_1": 50.0, "knn_3": 50.0}
    blunt = KNNSettings(neighbors=(3,), temperature=10)
    assert knn_predict(train, labels, test, blunt)[3].tolist() == [2, 2]


def test_a_tied_vote_goes_to_the_lower_class() -> None:
    train = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    predictions = knn_predict(
        train, torch.tensor([8, 3]), torch.tensor([[1.0, 0.0]]), KNNSettings(neighbors=(1, 2))
    )
    assert {k: found.item() for k, found in predictions.items()} == {1: 8, 2: 3}


def test_votes_neither_overflow_nor_vanish_at_a_tiny_temperature() -> None:
    # Unscaled, both votes would be infinite for the first query and zero for the second, and the
    # lower class would win.
    train, labels = torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.tensor([1, 0])
    settings = KNNSettings(neighbors=(2,), temperature=1e-4)
    queries = torch.tensor([[1.0, 0.0], [-0.6, -0.8]])
    assert knn_predict(train, labels, queries, settings)[2].tolist() == [1, 1]


def test_attributes_are_each_voted_on_with_the_same_neighbors() -> None:
    train, shape = clusters(120, seed=4)
    test, test_shape = clusters(60, seed=5)
    settings = KNNSettings(neighbors=(3, 20))
    texture, test_texture = shape % 2, test_shape % 2
    metrics = knn_attributes(
        Features(train, None, {"shape": shape, "texture": texture, "train only": shape}),
        Features(test, None, {"texture": test_texture, "shape": test_shape}),
        settings,
    )
    by_shape = knn(train, shape, test, test_shape, settings)
    by_texture = knn(train, texture, test, test_texture, settings)
    assert by_shape != by_texture
    assert metrics == {
        "knn_3/shape": by_shape["knn_3"],
        "knn_20/shape": by_shape["knn_20"],
        "knn_3/texture": by_texture["knn_3"],
        "knn_20/texture": by_texture["knn_20"],
    }


def test_k_beyond_the_bank_names_both_numbers() -> None:
    train, labels = clusters(150, seed=6)
    with pytest.raises(InputError, match=r"k = 200 .* 150 training"):
        knn(train, labels, train, labels)


def test_usable_neighbors_keep_what_fits() -> None:
    default = KNNSettings(temperature=0.1)
    assert trimmed(default, 200) == default
    assert trimmed(default, 199) == KNNSettings(neighbors=(20,), temperature=0.1)
    assert trimmed(default, 7).neighbors == (7,)


@pytest.mark.parametrize(
    ("train", "labels", "test", "message"),
    [
        (torch.ones(4, 2), torch.ones(3), torch.ones(1, 2), "4 training features.*shape .3,"),
        (torch.ones(4, 2), torch.ones(4), torch.ones(1, 3), "width 2 and test features 3"),
        (torch.ones(4, 2), torch.ones(4), torch.ones(0, 2), "no test images"),
        (torch.full((4, 2), math.nan), torch.ones(4), torch.ones(1, 2), "training.*NaN"),
        (torch.ones(4, 2), torch.ones(4), torch.full((1, 2), math.inf), "test.*NaN or infinity"),
        (torch.ones(4, 2, 1), torch.ones(4), torch.ones(1, 2), r"training.*\(4, 2, 1\)"),
    ],
)
def test_unusable_features_are_refused(
    train: Tensor, labels: Tensor, test: Tensor, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        knn(train, labels, test, torch.ones(len(test)), KNNSettings(neighbors=(1,)))


def test_large_finite_features_are_not_mistaken_for_infinite() -> None:
    features = torch.full((20, 2), 3e38)
    metrics = knn(features, torch.ones(20), features, torch.ones(20), KNNSettings(neighbors=(1,)))
    assert metrics == {"knn_1": 100.0}


@pytest.mark.parametrize("wrong", [{"neighbors": ()}, {"neighbors": (0,)}, {"temperature": 0}])
def test_senseless_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        KNNSettings.model_validate(wrong)


@pytest.mark.parametrize("k", [1, 20, 200])
def test_predictions_equal_votes_over_a_flat_search_of_faiss(k: int) -> None:
    train, labels = clusters(1500, seed=0)
    test, _ = clusters(211, seed=1)
    index = faiss.IndexFlatIP(train.shape[1])
    index.add(torch.nn.functional.normalize(train).numpy())
    similarities, rows = index.search(torch.nn.functional.normalize(test).numpy(), k)
    expected = []
    for row, cosines in zip(rows, similarities.astype(np.float64), strict=True):
        tally = np.bincount(labels.numpy()[row], np.exp(cosines / 0.07), minlength=7)
        expected.append(int(tally.argmax()))
    found = knn_predict(train, labels, test, KNNSettings(neighbors=(k,)))
    assert found[k].tolist() == expected


def euclidean_vote(
    train: Tensor, labels: Tensor, test: Tensor, k: int, temperature: float
) -> list[int]:
    """The definition: exp(-d²/2τ) with d in units of the training features' typical length."""
    squared_unit = train.double().square().sum(dim=1).mean().item()
    predictions = []
    for query in test.double():
        squares = ((train.double() - query).square().sum(dim=1) / squared_unit).tolist()
        nearest = sorted(range(len(squares)), key=lambda i: (squares[i], i))[:k]
        tally: defaultdict[int, float] = defaultdict(float)
        for i in nearest:
            tally[int(labels[i])] += math.exp(-squares[i] / (2 * temperature))
        predictions.append(max(sorted(tally), key=tally.__getitem__))
    return predictions


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_euclidean_votes_equal_their_definition_at_any_scale(scale: float) -> None:
    train, labels = clusters(301, seed=2)
    test, _ = clusters(60, seed=3)
    settings = KNNSettings(neighbors=(5, 50), distance="euclidean")
    found = knn_predict(train * scale, labels, test * scale, settings)
    for k in (5, 50):
        assert found[k].tolist() == euclidean_vote(train, labels, test, k, 0.07)


def test_both_distances_vote_alike_for_features_of_length_one() -> None:
    train, labels = clusters(301, seed=2)
    test, _ = clusters(100, seed=3)
    train, test = (torch.nn.functional.normalize(part) for part in (train, test))
    cosine, euclidean = (
        knn_predict(train, labels, test, KNNSettings(neighbors=(50,), distance=distance))
        for distance in ("cosine", "euclidean")
    )
    assert torch.equal(cosine[50], euclidean[50])


def shares() -> tuple[Features, Features]:
    train, labels = clusters(403, seed=4)
    test, truth = clusters(101, seed=5)
    return (
        Features(train, labels, {"parity": labels % 2}),
        Features(test, truth, {"parity": truth % 2}),
    )


def cut(whole: Features, sizes: list[int]) -> Features:
    labels = whole.labels
    assert labels is not None
    return Features(
        torch.split(whole.features, sizes)[rank()],
        torch.split(labels, sizes)[rank()],
        {name: torch.split(values, sizes)[rank()] for name, values in whole.attributes.items()},
    )


def classify_share(
    train_sizes: list[int], test_sizes: list[int], settings: KNNSettings
) -> dict[str, float]:
    train, test = shares()
    return knn_of_shares(
        cut(train, train_sizes), cut(test, test_sizes), settings, torch.device("cpu")
    )


@pytest.mark.parametrize(
    ("train_sizes", "test_sizes"),
    [([201, 202], [1, 100]), ([400, 0, 3], [34, 67, 0])],
)
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_shares_of_several_processes_have_the_accuracies_of_one(
    train_sizes: list[int], test_sizes: list[int], distance: str
) -> None:
    settings = KNNSettings.model_validate({"neighbors": (5, 200, 999), "distance": distance})
    train, test = shares()
    assert train.labels is not None
    assert test.labels is not None
    fitting = trimmed(settings, 403)
    alone = knn(train.features, train.labels, test.features, test.labels, fitting)
    alone |= knn_attributes(train, test, fitting)
    assert set(alone) == {"knn_5", "knn_200", "knn_5/parity", "knn_200/parity"}
    assert knn_of_shares(train, test, settings, torch.device("cpu")) == alone
    found = gloo.run(len(train_sizes), classify_share, train_sizes, test_sizes, settings)
    assert found == [alone] * len(train_sizes)


def refused_share(values: list[float]) -> str:
    train, test = shares()
    spoilt = train._replace(features=train.features * values[rank()])
    try:
        knn_of_shares(spoilt, test, KNNSettings(neighbors=(5,)), torch.device("cpu"))
    except InputError as error:
        return str(error)
    return "accepted"


def test_one_diverged_share_is_refused_by_all_processes() -> None:
    (first, second) = gloo.run(2, refused_share, [1.0, math.nan])
    assert first == second
    assert "training features contain NaN" in first
