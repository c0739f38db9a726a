"""k-nearest-neighbor classification of frozen features, as in Wu et al. (2018) and the paper.

https://arxiv.org/abs/1805.01978. Features are L2-normalized; each of the k most similar training
images (cosine s) votes for its class with weight exp(s / temperature).

With Euclidean distances, features are not normalized, and a neighbor at distance d votes with weight
exp(-d² / (2 · temperature)); the unit of d is the root mean square length of the training features.
For features of length 1, d² / 2 = 1 - s, and both votes are the same.
"""

from collections.abc import Callable, Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from imsvd.distributed import all_gather_rows, gather_lists, together, world_size
from imsvd.errors import InputError
from imsvd.evaluation.features import Features, check_features, check_labels, check_widths
from imsvd.evaluation.neighbors import Distance, Neighbors, nearest_neighbors
from imsvd.settings import Settings


class KNNSettings(Settings):
    """Settings of the kNN classifier.

    Attributes:
        neighbors: values of k, all answered by one search.
        temperature: scale on which a vote decays with distance.
        distance: cosine of normalized features, or Euclidean distance of raw features.
        query_chunk: test images compared at a time; affects memory only.
        bank_chunk: training images prepared at a time; affects memory only.
    """

    neighbors: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (20, 200)
    temperature: float = Field(default=0.07, gt=0)
    distance: Distance = "cosine"
    query_chunk: int = Field(default=1024, ge=1)
    bank_chunk: int = Field(default=8192, ge=1)


_DEFAULTS = KNNSettings()


def knn(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    settings: KNNSettings = _DEFAULTS,
) -> dict[str, float]:
    """Return the top-1 accuracy in percent for every k of `settings`, such as {"knn_20": 51.2}.

    Training features (n, width) with labels (n,) vote on test features (m, width) with labels (m,).
    """
    check_labels("test", test, test_labels)
    predictions = knn_predict(train, train_labels, test, settings)
    return {f"knn_{k}": _accuracy(found, test_labels) for k, found in predictions.items()}


def knn_predict(
    train: Tensor, train_labels: Tensor, test: Tensor, settings: KNNSettings = _DEFAULTS
) -> dict[int, Tensor]:
    """Return the predicted class (m,) of every row of `test` (m, width), for every k."""
    check_labels("training", train, train_labels)
    return _vote(_search(train, test, settings), train_labels, settings)


def knn_attributes(
    train: Features, test: Features, settings: KNNSettings = _DEFAULTS
) -> dict[str, float]:
    """Return the top-1 accuracy in percent per k and attribute, such as {"knn_20/shape": 93.1}.

    One search serves all attributes that both sides have.
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


def knn_of_shares(
    train: Features,
    test: Features,
    settings: KNNSettings,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, float]:
    """Return the accuracies of `knn` and `knn_attributes` for images distributed over the ranks.

    Every rank must call this with its share of both splits, possibly empty, in rank order. All get
    the accuracies that one process would compute from all images. Values of k beyond the number of
    training images are dropped.

    Args:
        train: this rank's images that vote.
        test: this rank's images to classify.
        settings: settings of the classifier.
        device: where to search and to communicate.
        progress: called with (done, in total) of this rank's training images during the search.
    """
    _refuse_together(train, test)
    answers, truth = (_gathered_targets(part, device) for part in (train, test))
    num_train = len(next(iter(answers.values())))
    settings = usable_neighbors(settings, num_train)
    queries = all_gather_rows(test.features.to(device))
    lengths = _lengths(train.features, settings)
    if world_size() > 1:  # a single process computes in float64 on the CPU: some devices lack it
        lengths = all_gather_rows(lengths.to(device))
    found = nearest_neighbors(
        train.features,
        queries,
        max(settings.neighbors),
        distance=settings.distance,
        unit=_root_mean_square(lengths),
        query_chunk=settings.query_chunk,
        bank_chunk=settings.bank_chunk,
        shared=True,
        progress=progress,
    )
    return {
        f"knn_{k}{name}": _accuracy(predicted, truth[name])
        for name in answers
        if name in truth
        for k, predicted in _vote(found, answers[name], settings).items()
    }


def _refuse_together(train: Features, test: Features) -> None:
    """Check the features of all ranks; if any rank's are unusable, all raise."""
    splits = {"training": train.features, "test": test.features}

    def check_share() -> None:
        for split, features in splits.items():
            if len(features):
                check_features(split, features)

    together(check_share)
    for split, features in splits.items():
        if not sum(gather_lists([len(features)])):
            raise InputError(f"there are no {split} images to evaluate with.")
    check_widths(train.features, test.features)


def _gathered_targets(part: Features, device: torch.device) -> dict[str, Tensor]:
    """Gather labels (key "") and attributes (key "/name") of all ranks' images, (n,) each."""
    targets = {} if part.labels is None else {"": part.labels}
    targets |= {f"/{name}": values for name, values in part.attributes.items()}
    return {name: all_gather_rows(values.to(device)).cpu() for name, values in targets.items()}


def _lengths(features: Tensor, settings: KNNSettings) -> Tensor:
    """Return the lengths (n,) of features (n, width) in float64; empty for cosines."""
    if settings.distance == "cosine":
        return torch.empty(0, dtype=torch.float64, device=features.device)
    # In chunks, because each is copied to float64.
    chunks = torch.split(features, settings.bank_chunk)
    return torch.cat([torch.linalg.vector_norm(chunk.double(), dim=1) for chunk in chunks])


def _root_mean_square(lengths: Tensor) -> float:
    """Return the unit of distance; 1 without lengths or if all are zero."""
    return float(lengths.cpu().square().mean().sqrt()) or 1.0 if len(lengths) else 1.0


def usable_neighbors(settings: KNNSettings, num_train: int) -> KNNSettings:
    """Drop values of k above `num_train`; if none is left, use k = `num_train`."""
    fitting = tuple(k for k in settings.neighbors if k <= num_train)
    return settings.model_copy(update={"neighbors": fitting or (num_train,)})


def _search(train: Tensor, test: Tensor, settings: KNNSettings) -> Neighbors:
    """Find the neighbors in `train` (n, width) of `test` (m, width) for the largest k."""
    check_features("training", train)
    check_features("test", test)
    check_widths(train, test)
    largest = max(settings.neighbors)
    if largest > len(train):
        raise InputError(
            f"k = {largest} exceeds the {len(train)} training images; choose at most {len(train)}."
        )
    return nearest_neighbors(
        train,
        test,
        largest,
        distance=settings.distance,
        unit=_root_mean_square(_lengths(train, settings)),
        query_chunk=settings.query_chunk,
        bank_chunk=settings.bank_chunk,
    )


def _vote(found: Neighbors, train_labels: Tensor, settings: KNNSettings) -> dict[int, Tensor]:
    """Return the class (m,) with the most weight among the k nearest, for every k.

    Ties go to the lower class. Votes are counted on the CPU in float64, because parallel sums on a
    GPU have no fixed order.
    """
    classes, labels = torch.unique(train_labels.cpu(), return_inverse=True)
    similarities = found.similarities.cpu().double()
    # Weights relative to the nearest neighbor's give the same vote and cannot overflow.
    weights = ((similarities - similarities[:, :1]) / settings.temperature).exp()
    votes = labels[found.indices.cpu()]
    return {
        k: classes[torch.cat([*_winners(weights[:, :k], votes[:, :k], len(classes), settings)])]
        for k in settings.neighbors
    }


def _winners(
    weights: Tensor, votes: Tensor, num_classes: int, settings: KNNSettings
) -> Iterator[Tensor]:
    """Yield the winning class numbers of (m, k) weighted votes, in chunks of rows."""
    for first in range(0, len(votes), settings.query_chunk):
        rows = slice(first, first + settings.query_chunk)
        tally = weights.new_zeros(len(votes[rows]), num_classes)
        yield tally.scatter_add_(1, votes[rows], weights[rows]).argmax(dim=1)


def _accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Return the percentage of `predicted` (m,) that equals `labels` (m,)."""
    return 100 * (predicted == labels.to(predicted.device)).double().mean().item()
