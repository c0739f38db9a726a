"""Codes that people would use instead of ours, behind one small interface.

| class | code | a float query is compared by |
|---|---|---|
| `RandomProjections` | signs of random projections (Charikar, 2002) | its projections · signs |
| `PCAITQ` | signs of rotated principal components (Gong and Lazebnik, 2011) | its rotated components · signs |
| `ProductQuantization` | a centroid per slice (Jégou et al., 2011; faiss) | distance to the decoded code |
| `ResidualKMeans` | each variable clusters what the ones before left over | distance to the decoded code |
| `IndependentKMeans` | several k-means with different seeds | distance to the mean of the centroids |

The sparse autoencoder is in `autoencoder.py`. Every similarity is an inner product of a query with
the vector of a code, so that one search serves all: `query(features)` against `vectors(codes)`, or
`code_query(codes)` against `vectors(codes)` if both sides are codes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd.methods.kmeans import Clusters, assign, kmeans

BYTE = 8
"""Bits of a variable of 256 units."""
REDUCED = 256
"""Principal components on which k-means runs."""
CLUSTERED_ROWS = 20_480
"""Most rows that k-means sees: 80 for each of 256 clusters."""
ITERATIONS = 50
"""Alternations of ITQ, as in its paper."""


class Code(ABC):
    """Turns features into codes, and compares codes and features with codes.

    Attributes:
        units: number of units of each variable; None if a code is a set of active units.
    """

    units: tuple[int, ...] | None

    @property
    def bits(self) -> float:
        """Size of a code."""
        assert self.units is not None
        return sum(math.log2(size) for size in self.units)

    @abstractmethod
    def codes(self, features: Tensor) -> Tensor:
        """Return the unit of every variable, (n, variables) int64, or active units, (n, W) bool."""

    @abstractmethod
    def vectors(self, codes: Tensor) -> Tensor:
        """Return what queries are compared with, (n, size)."""

    @abstractmethod
    def query(self, features: Tensor) -> Tensor:
        """Return float queries, (n, size)."""

    def code_query(self, codes: Tensor) -> Tensor:
        """Return the queries of images of which only the code is known, (n, size)."""
        return self.vectors(codes)

    def probabilities(self, features: Tensor) -> Tensor | None:
        """Return the probability of every unit, (n, units); None for codes that are hard only."""
        del features
        return None


class Quantizer(Code):
    """A code that is fitted to features without labels."""

    @abstractmethod
    def fit(self, rows: Tensor, seed: int) -> None:
        """Learn from features (rows, width)."""


class Mapped(Quantizer):
    """A code of features that are mapped first."""

    def __init__(self, code: Quantizer, mapping: Callable[[Tensor], Tensor]) -> None:
        self.code, self.map = code, mapping
        self.units = code.units

    def fit(self, rows: Tensor, seed: int) -> None:
        """Fit the code to mapped features."""
        self.code.fit(self.map(rows), seed)

    def codes(self, features: Tensor) -> Tensor:
        """Return the codes of mapped features."""
        return self.code.codes(self.map(features))

    def vectors(self, codes: Tensor) -> Tensor:
        """Return what the code compares with."""
        return self.code.vectors(codes)

    def query(self, features: Tensor) -> Tensor:
        """Return the queries of mapped features."""
        return self.code.query(self.map(features))


def one_hot(codes: Tensor, units: tuple[int, ...]) -> Tensor:
    """Return 1 for the units taken and 0 for the others, (n, units) float32."""
    columns = zip(codes.T, units, strict=True)
    return torch.cat([F.one_hot(column, size).float() for column, size in columns], 1)


class Preparation:
    """Centers features, and may normalize them before and reduce them to principal components after."""

    def __init__(self, normalize: bool, components: int | None = None) -> None:
        self.normalize, self.components = normalize, components

    def fit(self, rows: Tensor) -> Tensor:
        """Learn from `rows`, and return them prepared."""
        scaled = self._scale(rows)
        self.mean = scaled.mean(0)
        self.axes: Tensor | None = None
        if self.components is not None:
            self.axes = principal_axes(scaled - self.mean, self.components)
        return self(rows)

    def __call__(self, features: Tensor) -> Tensor:
        """Return the features prepared."""
        centered = self._scale(features) - self.mean
        return centered if self.axes is None else centered @ self.axes

    def _scale(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) if self.normalize else features


def principal_axes(centered: Tensor, count: int) -> Tensor:
    """Return the `count` axes of largest variance of (rows, width), (width, count), largest first."""
    vectors: Tensor = torch.linalg.eigh(centered.T @ centered / len(centered))[1]
    return vectors.flip(1)[:, :count].contiguous()


def random_rotation(size: int, seed: int) -> Tensor:
    """Return a random orthogonal matrix."""
    generator = torch.Generator().manual_seed(seed)
    rotation: Tensor = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    return rotation


class SignQuantizer(Quantizer):
    """A code of signs."""

    def __init__(self, bits: int) -> None:
        self.units = (2,) * bits

    def codes(self, features: Tensor) -> Tensor:
        """Return 1 where a projection is positive."""
        return (self.query(features) > 0).long()

    def vectors(self, codes: Tensor) -> Tensor:
        """Return the signs."""
        return 2.0 * codes - 1


class RandomProjections(SignQuantizer):
    """Signs of random projections of centered features."""

    def __init__(self, bits: int, *, normalize: bool) -> None:
        super().__init__(bits)
        self.prepare = Preparation(normalize)

    def fit(self, rows: Tensor, seed: int) -> None:
        """Draw the directions; only the mean is learned."""
        width = self.prepare.fit(rows).shape[1]
        assert self.units is not None
        generator = torch.Generator().manual_seed(seed)
        self.directions = torch.randn(width, len(self.units), generator=generator)

    def query(self, features: Tensor) -> Tensor:
        """Return the projections."""
        return self.prepare(features) @ self.directions


class PCAITQ(SignQuantizer):
    """Signs of principal components after the rotation that changes them least by taking signs."""

    def __init__(self, bits: int, *, normalize: bool) -> None:
        super().__init__(bits)
        self.prepare = Preparation(normalize, components=bits)

    def fit(self, rows: Tensor, seed: int) -> None:
        """Alternate between the signs and the best rotation to them."""
        reduced = self.prepare.fit(rows)
        self.rotation = random_rotation(reduced.shape[1], seed)
        self.losses = []
        for _ in range(ITERATIONS):
            rotated = reduced @ self.rotation
            signs = torch.where(rotated > 0, 1.0, -1.0)
            self.losses.append(float((signs - rotated).square().mean()))
            left, _, right = torch.linalg.svd(reduced.T @ signs)
            self.rotation = left @ right

    def query(self, features: Tensor) -> Tensor:
        """Return the rotated components."""
        return self.prepare(features) @ self.rotation


class DecodedQuantizer(Quantizer):
    """A code that stands for a point; the nearest codes are those of the nearest points.

    For a point d, the vector is (d, -|d|² / 2) and the query (x, 1): the inner product is half the
    negative squared distance, up to a constant of the query.
    """

    prepare: Preparation

    @abstractmethod
    def decode(self, codes: Tensor) -> Tensor:
        """Return the points, (n, prepared width)."""

    def vectors(self, codes: Tensor) -> Tensor:
        """Return the points with what makes an inner product a distance."""
        points = self.decode(codes)
        return torch.cat([points, points.square().sum(1, keepdim=True) / -2], 1)

    def query(self, features: Tensor) -> Tensor:
        """Return the prepared features and a 1."""
        return F.pad(self.prepare(features), (0, 1), value=1.0)

    def code_query(self, codes: Tensor) -> Tensor:
        """Return the points and a 1."""
        return F.pad(self.decode(codes), (0, 1), value=1.0)


class ProductQuantization(DecodedQuantizer):
    """Product quantization by faiss: 256 centroids for each of bits / 8 slices.

    Args:
        bits: size of a code.
        normalize: whether features are normalized before.
        rotate: whether slices are of randomly rotated principal components (faiss: PCAR256,PQ8)
            instead of the features as they are.
    """

    def __init__(self, bits: int, *, normalize: bool, rotate: bool) -> None:
        self.slices, self.rotate = bits // BYTE, rotate
        self.units = (2**BYTE,) * self.slices
        self.prepare = Preparation(normalize, REDUCED if rotate else None)

    def fit(self, rows: Tensor, seed: int) -> None:
        """Cluster every slice."""
        import faiss  # noqa: PLC0415 - optional

        reduced = self.prepare.fit(rows)
        if self.prepare.axes is not None:
            rotation = random_rotation(reduced.shape[1], seed)
            self.prepare.axes = self.prepare.axes @ rotation
            reduced = reduced @ rotation
        self.width = reduced.shape[1]
        self.padding = -self.width % self.slices
        self.quantizer: Any = faiss.ProductQuantizer(self.width + self.padding, self.slices, BYTE)
        self.quantizer.cp.seed = seed
        self.quantizer.cp.min_points_per_centroid = 1  # no warning about few images
        self.quantizer.train(self._padded(sample_rows(reduced, CLUSTERED_ROWS, seed)))

    def _padded(self, prepared: Tensor) -> Any:
        return F.pad(prepared, (0, self.padding)).contiguous().numpy()

    def codes(self, features: Tensor) -> Tensor:
        """Return the nearest centroid of every slice."""
        found = self.quantizer.compute_codes(self._padded(self.prepare(features)))
        return torch.from_numpy(found.astype(np.int64))

    def decode(self, codes: Tensor) -> Tensor:
        """Return the centroids of the slices side by side."""
        points = self.quantizer.decode(codes.numpy().astype(np.uint8))
        return torch.from_numpy(points)[:, : self.width]


class KMeansQuantizer(DecodedQuantizer):
    """One k-means for each variable, on principal components.

    Args:
        bits: size of a code.
        normalize: whether features are normalized before.
        units: clusters of a variable.
    """

    def __init__(self, bits: int, *, normalize: bool, units: int = 2**BYTE) -> None:
        each = units.bit_length() - 1
        self.units = (units,) * (bits // each)
        self.prepare = Preparation(normalize, REDUCED)

    def _cluster(self, points: Tensor, variable: int, seed: int) -> Clusters:
        assert self.units is not None
        return kmeans(points, self.units[variable], seed=1000 * seed + variable)


class ResidualKMeans(KMeansQuantizer):
    """Every variable clusters what the ones before left over."""

    def fit(self, rows: Tensor, seed: int) -> None:
        """Cluster, subtract the centroids, and go on with the rest."""
        assert self.units is not None
        rest = self.prepare.fit(sample_rows(rows, CLUSTERED_ROWS, seed))
        self.centroids = []
        for variable in range(len(self.units)):
            found = self._cluster(rest, variable, seed)
            self.centroids.append(found.centroids)
            rest = rest - found.centroids[found.assignments]

    def codes(self, features: Tensor) -> Tensor:
        """Return the nearest centroid to what the ones before left over."""
        rest = self.prepare(features)
        chosen = []
        for centroids in self.centroids:
            chosen.append(assign(rest, centroids)[0])
            rest = rest - centroids[chosen[-1]]
        return torch.stack(chosen, 1)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the sums of the centroids."""
        chosen = zip(self.centroids, codes.T, strict=True)
        return torch.stack([centroids[column] for centroids, column in chosen]).sum(0)


class IndependentKMeans(KMeansQuantizer):
    """Clusterings of the same features with different seeds."""

    def fit(self, rows: Tensor, seed: int) -> None:
        """Cluster once for every variable."""
        assert self.units is not None
        points = self.prepare.fit(sample_rows(rows, CLUSTERED_ROWS, seed))
        count = len(self.units)
        self.centroids = [self._cluster(points, v, seed).centroids for v in range(count)]

    def codes(self, features: Tensor) -> Tensor:
        """Return the nearest centroid of every clustering."""
        points = self.prepare(features)
        return torch.stack([assign(points, centroids)[0] for centroids in self.centroids], 1)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the means of the centroids."""
        chosen = zip(self.centroids, codes.T, strict=True)
        return torch.stack([centroids[column] for centroids, column in chosen]).mean(0)


def sample_rows(rows: Tensor, most: int, seed: int) -> Tensor:
    """Return `rows`, or `most` of them drawn at random."""
    if len(rows) <= most:
        return rows
    generator = torch.Generator().manual_seed(seed)
    return rows[torch.randperm(len(rows), generator=generator)[:most]]
