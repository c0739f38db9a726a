"""The alternatives by name, and how their options are chosen."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from imsvd.bench.codes.autoencoder import SparseAutoencoder
from imsvd.bench.codes.inputs import RECALLED, Split
from imsvd.bench.codes.measures import make_database
from imsvd.bench.codes.quantizers import (
    PCAITQ,
    IndependentKMeans,
    Mapped,
    ProductQuantization,
    Quantizer,
    RandomProjections,
    ResidualKMeans,
)
from imsvd.bench.codes.retrieval import Queries, retrieval_measures
from imsvd.config import FrozenSettings
from imsvd.discretizing.directions import lasting_directions
from imsvd.errors import InputError
from imsvd.evaluation.neighbors import nearest_neighbors

HELD_OUT = 0.1
MOST_HELD_OUT = 1000

Options = dict[str, Any]
_NORMALIZE = {"normalize": (True, False)}
_CLUSTERED = 300
"""Images of which nine tenths can be clustered into 256."""


class Rival(NamedTuple):
    """An alternative: its name in tables, how it is made, and the values to try of each option.

    All of them also try `views`: whether to learn from augmented views as well as plain images.
    """

    label: str
    make: Callable[..., Quantizer]
    options: Mapping[str, tuple[Any, ...]]
    needs: str = ""
    """Package it needs."""
    fewest_images: int = 0
    """Training images it needs."""
    bits_per_feature: float = math.inf
    """Most bits it can have."""
    directed: bool = False
    """Whether it gets features in the coordinates that our head reads: a part of ours, not an alternative."""

    def require(self, name: str) -> None:
        """Raise if its package is missing."""
        if self.needs and importlib.util.find_spec(self.needs) is None:
            raise InputError(
                f"--methods {name} cannot be measured without {self.needs}; install it or leave "
                f"{name} out."
            )

    def require_data(self, bits: int, images: int, width: int) -> None:
        """Raise if there are too few training images, or too few features for `bits`."""
        if images < self.fewest_images:
            raise InputError(
                f"{images} training images are too few for 256 clusters of {self.label}; give at "
                f"least {self.fewest_images} or leave it out of --methods."
            )
        if bits > self.bits_per_feature * width:
            raise InputError(
                f"{self.label} gives at most {width} bits, one for each feature; "
                "choose fewer --bits or leave it out of --methods."
            )

    def fit(self, bits: int, options: Options, train: Split, images: Any, seed: int) -> Quantizer:
        """Return the code, fitted to the given training images."""
        arguments = {name: value for name, value in options.items() if name != "views"}
        quantizer = self.make(bits, **arguments)
        if self.directed:
            most = FrozenSettings.model_fields["directions"].default
            reader = lasting_directions(train.features, np.asarray(images), most, seed)
            quantizer = Mapped(quantizer, reader)
        quantizer.fit(train.rows_to_fit(images, views=options["views"], seed=seed), seed)
        return quantizer


RIVALS: dict[str, Rival] = {
    "itq": Rival("PCA + ITQ", PCAITQ, _NORMALIZE, bits_per_feature=1),
    "pq": Rival(
        "product quantization",
        ProductQuantization,
        {**_NORMALIZE, "rotate": (False, True)},
        needs="faiss",
        fewest_images=_CLUSTERED,
    ),
    "residual": Rival("residual k-means", ResidualKMeans, _NORMALIZE, fewest_images=_CLUSTERED),
    "kmeans": Rival(
        "independent k-means",
        IndependentKMeans,
        {**_NORMALIZE, "units": (256, 16)},
        fewest_images=_CLUSTERED,
    ),
    "lsh": Rival("random projections", RandomProjections, _NORMALIZE),
    "directed": Rival(
        "our directions, PCA + ITQ", PCAITQ, _NORMALIZE, bits_per_feature=1, directed=True
    ),
    "sae": Rival("TopK sparse autoencoder", SparseAutoencoder, {"as_set": (False, True)}),
}


class Choice(NamedTuple):
    """Options of an alternative, and what was tried."""

    options: Options
    tried: list[dict[str, Any]]


def choose_options(rival: Rival, bits: int, train: Split) -> Choice:
    """Choose the options with the best precision at 10 on held-out training images.

    Labels are used here, which our code never sees. Options are varied one after another; precision
    is the mean of both kinds of queries.
    """
    rest, held_out = (np.sort(part) for part in _split(len(train)))
    nearest = nearest_neighbors(train.plain[rest], train.plain[held_out], RECALLED).indices
    values = {**rival.options, "views": (False, True)}
    best = {name: options[0] for name, options in values.items()}
    tried: list[dict[str, Any]] = []

    def score(options: Options) -> float:
        for earlier in tried:
            if earlier["options"] == options:
                return float(earlier["p10"])
        code = rival.fit(bits, options, train, rest, 0)
        database = make_database(code, train.plain[rest], train.labels[rest])
        features, labels = train.plain[held_out], train.labels[held_out]
        queries = (code.code_query(code.codes(features)), code.query(features))
        found = [retrieval_measures(database, Queries(q, labels, nearest), 0) for q in queries]
        tried.append({"options": options, "p10": sum(numbers["p10"] for numbers in found) / 2})
        return float(tried[-1]["p10"])

    for name, options in values.items():
        best = max(({**best, name: value} for value in options), key=score)
    return Choice(best, tried)


def _split(count: int) -> tuple[Any, Any]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).numpy()
    held_out = min(MOST_HELD_OUT, max(1, round(HELD_OUT * count)))
    return order[held_out:], order[:held_out]
