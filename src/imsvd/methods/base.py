"""What every method gives the training loop, and nothing about optimisers or logging."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn


class MethodOutput(NamedTuple):
    """What one step of a method yields."""

    loss: Tensor
    """Scalar to differentiate."""
    terms: dict[str, Tensor]
    """Named parts of the loss over the global batch, detached, for logging."""
    features: Tensor
    """Backbone features of the first view, (batch, num_features), detached."""
    embedding: Tensor
    """What the loss saw of the first view, (batch, width), detached."""


class Method(nn.Module, ABC):
    """A backbone, its heads and an objective.

    The loop calls `forward` with one tensor per view, `after_step` when the weights have moved, and
    averages `statistics` over an epoch before it hands them to `summarise`.
    """

    backbone: nn.Module

    @abstractmethod
    def forward(self, views: Sequence[Tensor]) -> MethodOutput:
        """Compute the loss of `views`, each (batch, 3, height, width)."""

    def after_step(self, progress: float) -> None:
        """Update what gradients do not, such as a momentum encoder; `progress` runs from 0 to 1."""

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return reference values of each term, `{"ideal": {"invariance": 0.0, …}, …}`, if known."""
        del batch_size
        return {}

    def statistics(self, embedding: Tensor) -> dict[str, Tensor]:
        """Return health statistics of one batch of (batch, width) embeddings, to be averaged."""
        del embedding
        return {}

    def summarise(self, statistics: Mapping[str, Tensor]) -> dict[str, float]:
        """Turn the averaged statistics of an epoch into named numbers."""
        return {name: float(value) for name, value in statistics.items()}
