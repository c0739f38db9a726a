"""k-nearest-neighbour classification of frozen features, as in Wu et al. (2018) and the paper.

https://arxiv.org/abs/1805.01978. Features are L2-normalised; each of the k most similar training
images (cosine s) votes for its class with weight exp(s / temperature).
"""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from imsvd.errors import InputError
from imsvd.evaluation.features import Features
from imsvd.evaluation.labelled import check_features, check_labels, check_widths
from imsvd.evaluation.neighbours import Neighbours, nearest_neighbours
from imsvd.settings import Settings


class KNNSettings(Settings):
    """Settings of the kNN classifier.

    Attributes:
        neighbours: the values of k, all answered by one search.
        temperature: how fast a neighbour's vote falls with its distance.
        query_chunk: test images compared at a time; bounds memory, not the result.
        bank_chunk: training images compared at a time; bounds memory, not the result.
    """

    neighbours: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (20, 200)
    temperature: float = Field(default=0.07, gt=0)
    query_chunk: int = Field(default=256, ge=1)
    bank_chunk: int = Field(default=8192, ge=1)


_DEFAULTS = KNNSettings()


def knn(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    settings: KNNSettings = _DEFAULTS,
) -> dict[str, float]:
    """Top-1 accuracy in percent for every k of `settings`, such as {"knn_20": 51.2}.

    Args:
        train: (n, width) features that vote.
        train_labels: (n,) their classes.
        test: (m, width) features to classify.
        test_labels: (m,) their classes.
        settings: the values of k, the temperature and the chunk sizes.
    """
    check_labels("test", test, test_labels)
    predictions = knn_predict(train, train_labels, test, settings)
    return {f"knn_{k}": _accuracy(found, test_labels) for k, found in predictions.items()}


def knn_predict(
    train: Tensor, train_labels: Tensor, test: Tensor, settings: KNNSettings = _DEFAULTS
) -> dict[int, Tensor]:
    """The predicted class (m,) of every row of `test` (m, width), for every k of `settings`."""
    check_labels("training", train, train_labels)
    return _vote(_search(train, test, settings), train_labels, settings)


def knn_attributes(
    train: Features, test: Features, settings: KNNSettings = _DEFAULTS
) -> dict[str, float]:
    """Top-1 accuracy in percent per k and attribute, such as {"knn_20/shape": 93.1}.

    The neighbours are found once; each attribute that both sides know is then voted on.
    """
    names = [name for name in train.attributes if name in test.attributes]
    for name in names:
        check_labels("training", train.features, train.attributes[name])
        check_labels("test", test.features, test.attributes[name])
    if not names:
        return {}
    found = _search(train.features, test.features, settings)
    return {
        f"knn_{k}/{name}": _accuracy(predicted, test.attributes[name])
        for name in names
        for k, predicted in _vote(found, train.attributes[name], settings).items()
    }


def usable_neighbours(settings: KNNSettings, num_train: int) -> KNNSettings:
    """`settings` without the values of k that a bank of `num_train` images cannot answer.

    If none fits, k = `num_train` remains.
    """
    fitting = tuple(k for k in settings.neighbours if k <= num_train)
    return settings.model_copy(update={"neighbours": fitting or (num_train,)})


def _search(train: Tensor, test: Tensor, settings: KNNSettings) -> Neighbours:
    """The neighbours in `train` (n, width) of `test` (m, width), as many as the largest k needs."""
    check_features("training", train)
    check_features("test", test)
    check_widths(train, test)
    largest = max(settings.neighbours)
    if largest > len(train):
        raise InputError(
            f"k = {largest} neighbours were asked for, but there are only {len(train)} training "
            f"images; choose k of at most {len(train)}."
        )
    return nearest_neighbours(
        train,
        test,
        largest,
        query_chunk=settings.query_chunk,
        bank_chunk=settings.bank_chunk,
    )


def _vote(found: Neighbours, train_labels: Tensor, settings: KNNSettings) -> dict[int, Tensor]:
    """The class (m,) with the most weight among the k nearest, for every k; the lower wins a tie.

    Votes are counted on the CPU in float64: summing in parallel on a GPU follows no fixed order.
    """
    classes, labels = torch.unique(train_labels.cpu(), return_inverse=True)
    similarities = found.similarities.cpu().double()
    # Relative to the nearest neighbour, which leaves the vote unchanged, no weight can overflow.
    weights = ((similarities - similarities[:, :1]) / settings.temperature).exp()
    votes = labels[found.indices.cpu()]
    return {
        k: classes[torch.cat([*_winners(weights[:, :k], votes[:, :k], len(classes), settings)])]
        for k in settings.neighbours
    }


def _winners(
    weights: Tensor, votes: Tensor, num_classes: int, settings: KNNSettings
) -> Iterator[Tensor]:
    """The winning class numbers of (m, k) weighted votes, a chunk of rows at a time."""
    for first in range(0, len(votes), settings.query_chunk):
        rows = slice(first, first + settings.query_chunk)
        tally = weights.new_zeros(len(votes[rows]), num_classes)
        yield tally.scatter_add_(1, votes[rows], weights[rows]).argmax(dim=1)


def _accuracy(predicted: Tensor, labels: Tensor) -> float:
    """The share in percent of `predicted` (m,) that equals `labels` (m,)."""
    return 100 * (predicted == labels.to(predicted.device)).double().mean().item()
