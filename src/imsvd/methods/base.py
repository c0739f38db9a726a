"""What every method gives the training loop, and nothing about optimizers or logging."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd.settings import Settings


class MethodSettings(Settings):
    """What the settings of every method share."""

    name: str = Field("", description="which method; each has settings of its own")

    admits_local_views: ClassVar[bool] = False
    """Whether the method can use more than two views (multi-crop)."""

    @property
    def variable_units(self) -> tuple[int, ...]:
        """Units of each discrete variable of the embedding; empty if there are none."""
        return ()


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

    The loop calls `begin_epoch`, then for every step `forward` and, when the weights have moved,
    `after_step`; it averages `statistics` over an epoch before it hands them to `summarize`.
    Everything a step depends on is a parameter or a buffer, so that checkpoints resume exactly.
    """

    backbone: nn.Module

    @abstractmethod
    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss of this rank's part of a batch.

        Args:
            views: one (batch, 3, height, width) tensor per view, local views last.
            samples: (batch,) positions of the images in the data, for methods that remember them.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Refresh what an epoch keeps fixed, such as clusters; `epoch` counts from 0."""

    def constant_lr_modules(self) -> Sequence[nn.Module]:
        """Return the modules whose learning rate stays at its peak."""
        return ()

    def after_step(self, progress: float) -> None:
        """Update what gradients do not, such as a momentum encoder; `progress` runs from 0 to 1."""

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return reference values of each term, `{"ideal": {"invariance": 0.0, …}, …}`, if known."""
        del batch_size
        return {}

    def statistics(self, embedding: Tensor) -> dict[str, Tensor]:
        """Return health statistics of one batch of (batch, width) embeddings, to be averaged.

        Unless a method knows better: the spread of directions, 0 when collapsed, 1 when isotropic.
        """
        directions = F.normalize(embedding.float(), dim=-1)
        spread = directions.std(dim=0).mean() * directions.shape[-1] ** 0.5
        return {"spread": torch.nan_to_num(spread)}

    def summarize(self, statistics: Mapping[str, Tensor]) -> dict[str, float]:
        """Turn the averaged statistics of an epoch into named numbers."""
        return {name: float(value) for name, value in statistics.items()}


def average_terms(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average the terms that a loss has given for several pairs of views."""
    return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}
