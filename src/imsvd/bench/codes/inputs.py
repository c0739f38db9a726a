"""The features on which all codes are compared, computed once."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from imsvd.config import ComputeSettings
from imsvd.datasets import ImageSource
from imsvd.datasets.reading import image_key
from imsvd.discretizing.cache import FeatureRequest, cached_features
from imsvd.discretizing.feature_file import Half
from imsvd.encoder import Encoder, open_encoder, weights_key
from imsvd.engine.fabric import Fabric
from imsvd.engine.loop import shared_quarantine
from imsvd.errors import InputError
from imsvd.evaluation.features import labeled_source
from imsvd.evaluation.neighbors import nearest_neighbors
from imsvd.views import ViewSettings, ViewsSettings

TEST_VIEWS = 2
FEATURE_SEED = 0
"""Seed of the views; all seeds of all codes see the same features."""
FIT_ROWS = 50_000
"""Most features to which an alternative is fitted."""
BAD_IMAGE_LIMIT = 0.01
RECALLED = 10
"""Cosine neighbors that a code should find."""
FEWEST_IMAGES = 22
"""Training images: 20 vote, and a query and its neighbor are held out."""


class Split:
    """Features of labeled images.

    Args:
        features: (n, views + 1, width), the plain image last.
        labels: (n,) classes, from 0 on.
    """

    def __init__(self, features: Half, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def view(self, number: int) -> Tensor:
        """Return the features of one view of all images, (n, width) float32; -1 is the plain image."""
        return torch.from_numpy(self.features[:, number].astype(np.float32))

    @cached_property
    def plain(self) -> Tensor:
        """Features of the plain images, (n, width) float32."""
        return self.view(-1)

    def rows_to_fit(self, images: NDArray[np.int64], *, views: bool, seed: int) -> Tensor:
        """Return features of plain `images`, or also of their views; at random if there are too many."""
        count = self.features.shape[1]
        numbers = np.arange(count) if views else np.array([count - 1])
        chosen = np.random.default_rng(seed).permutation(len(images) * len(numbers))[:FIT_ROWS]
        chosen.sort()
        rows = self.features[images[chosen // len(numbers)], numbers[chosen % len(numbers)]]
        return torch.from_numpy(rows.astype(np.float32))


class Inputs(NamedTuple):
    """An encoder's features of training and test images."""

    spec: str
    encoder: Encoder
    data: str
    source: ImageSource
    """Training images."""
    train: Split
    test: Split
    nearest: Tensor
    """(test images, 10) nearest training images by cosine."""
    judged: Tensor
    """Features of plain test images by which the similarity of a unit's images is judged."""
    identity: dict[str, str]
    """Tells results of other features apart."""


class Request(NamedTuple):
    """What to encode, and how."""

    encoder: Encoder
    spec: str
    data: str
    judge: str | None
    views: ViewsSettings
    """Two kinds of views, which alternate."""
    num_views: int
    """Views of a training image."""
    compute: ComputeSettings
    cache: Path
    place: Path
    """Where unreadable images are listed."""


def read_inputs(request: Request, fabric: Fabric, console: Console) -> Inputs:
    """Compute the features, or take them from the cache."""
    encoder, spec, data, judge, *_ = request
    train, test = (labeled_source(data, split) for split in ("train", "test"))
    _require_images(train, data)
    first = _encode(encoder, train, "train", request.num_views, request, fabric, console)
    second = _encode(encoder, test, "test", TEST_VIEWS, request, fabric, console)
    labels = _compact(first[1], second[1])
    splits = [
        Split(features, part) for (features, _), part in zip((first, second), labels, strict=True)
    ]
    identity = {
        "encoder": weights_key(encoder),
        "views": f"{request.num_views} {request.views.model_dump_json()}",
        "train": image_key(train),
        "test": image_key(test),
        "judge": "",
    }
    judged = splits[1].plain
    if judge is not None:
        other = open_encoder(judge)
        identity["judge"] = weights_key(other)
        described = other.description
        view = ViewSettings(size=described.size, mean=described.mean, std=described.std)
        judging = request._replace(views=ViewsSettings(views=(view, view)))
        features, _ = _encode(other, test, "test", TEST_VIEWS, judging, fabric, console)
        judged = torch.from_numpy(features[:, -1].astype(np.float32))
    nearest = nearest_neighbors(splits[0].plain, splits[1].plain, RECALLED).indices
    first_split, second_split = splits
    return Inputs(spec, encoder, data, train, first_split, second_split, nearest, judged, identity)


def _require_images(train: ImageSource, data: str) -> None:
    if len(train) < FEWEST_IMAGES:
        raise InputError(
            f"{data} has {len(train)} training images, too few for neighbors to vote; "
            f"give at least {FEWEST_IMAGES}."
        )


def _encode(
    encoder: Encoder,
    source: ImageSource,
    split: str,
    views: int,
    request: Request,
    fabric: Fabric,
    console: Console,
) -> tuple[Half, Tensor]:
    """Return the features of all images and the labels of the images that were seen."""
    pair = request.views.views
    every = request.views.model_copy(
        update={"views": tuple(pair[number % len(pair)] for number in range(views))}
    )
    quarantine = shared_quarantine(source, BAD_IMAGE_LIMIT, request.place / split)
    features = cached_features(
        FeatureRequest(encoder, source, every, FEATURE_SEED),
        request.cache,
        request.compute,
        fabric,
        quarantine,
        console,
    )
    assert source.labels is not None
    return features, source.labels[quarantine.replacements()]


def _compact(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Number the classes of both splits from 0 on."""
    _, numbers = torch.unique(torch.cat([train, test]), return_inverse=True)
    first, second = torch.split(numbers, [len(train), len(test)])
    return first, second
