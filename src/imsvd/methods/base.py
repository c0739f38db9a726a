"""The contract of every method: facts the rest of the program reads, and a step the loop calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from imsvd.errors import InputError
from imsvd.losses.base import LossOutput
from imsvd.settings import Settings

Scale = Literal["small", "cifar10", "imagenet"]
"""small: minutes on a CPU; cifar10: ResNet-18 on one GPU; imagenet: ResNet-50 for 100 epochs."""

SMALLEST_BATCH = 16
"""Images per step that the smallest form of a method must be able to train on."""


class RecipeRow(NamedTuple):
    """How a method departs from IMSVD's recipe at one scale.

    Attributes:
        provenance: where the numbers come from, in one line.
        method: settings that differ from the method's defaults. Settings counted in epochs are
            those of a run of `imsvd.recipes.SCALE_EPOCHS` epochs.
        optimizer: optimizer settings that differ from IMSVD's at this scale.
        training: training settings that differ from IMSVD's at this scale.
    """

    provenance: str
    method: Mapping[str, Any] = {}
    optimizer: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}


RecipeRows = Mapping[Scale, RecipeRow]

SMALL_LR: Mapping[str, Any] = {"lr": 2e-3, "scale_lr": False}
"""Optimizer changes that most methods make at the small scale, where IMSVD has AdamW at 3e-3."""
CLIPPED_LARS: Mapping[str, Any] = {
    "name": "lars",
    "trust_coefficient": 0.02,
    "trust_clip": True,
    "decay_all": False,
}
"""LARS as solo-learn configures it for CIFAR-10."""


class CodeHead(NamedTuple):
    """The layers an encoder keeps after training to turn features into discrete variables.

    Attributes:
        projector: widths of its layers; empty if the encoder is the backbone alone.
        standardize: whether a BatchNorm without scale and shift ends the projector.
        units: units of each variable; empty if there are none.
    """

    projector: tuple[int, ...] = ()
    standardize: bool = False
    units: tuple[int, ...] = ()


class MethodSettings(Settings):
    """Settings of a method, and the facts about it that other packages read.

    A subclass overrides what differs from the defaults here; nothing outside `imsvd.methods` asks
    which method it has.
    """

    name: str = Field("", description="method to train with; each has settings of its own")

    admits_local_views: ClassVar[bool] = False
    """Whether the method can use more than two views (multi-crop)."""
    labels: ClassVar[Mapping[str, str]] = {}
    """Short column titles, at most five characters, of terms, statistics and bounds."""
    counted_in_epochs: ClassVar[tuple[str, ...]] = ()
    """Settings that are a number of epochs; a shorter training shrinks them in proportion."""
    first_phase: ClassVar[str] = ""
    """The setting among them that must end before training does, if there is one."""
    smallest_sizes: ClassVar[Mapping[str, int]] = {}
    """Sizes and lengths in the smallest form; see `smallest`."""
    recipes: ClassVar[RecipeRows] = {}
    """The rows of the three scales; empty for IMSVD, whose recipes the others depart from."""

    @property
    def code_head(self) -> CodeHead:
        """The head an encoder keeps besides the backbone; none unless the method learns codes."""
        return CodeHead()

    @property
    def views_with_gradient(self) -> float:
        """Share of the large views that pass through the backbone with a gradient."""
        return 1.0

    def fit_to_images(self, images: int, batch_size: int) -> Self:
        """Return the settings with every size that depends on the data no larger than it allows.

        Args:
            images: number of training images.
            batch_size: images per step, already fitted to them.
        """
        del images, batch_size
        return self

    def smallest(self) -> Self:
        """Return the smallest form of the same kind, which trains on `SMALLEST_BATCH` images.

        Sizes in `smallest_sizes` are replaced; each entry of a tuple is, so depth stays, and 0
        (which switches something off) stays 0.
        """
        changes = {}
        for name, size in self.smallest_sizes.items():
            value = getattr(self, name)
            changes[name] = [size] * len(value) if isinstance(value, tuple) else size
            changes[name] = changes[name] if value else value
        return self.replace(**changes)

    def phases(self, whole: int, epochs: int) -> dict[str, int]:
        """Scale the settings counted in epochs from a training of `whole` epochs to one of `epochs`."""
        return {
            name: in_proportion(getattr(self, name), whole, epochs)
            for name in self.counted_in_epochs
        }

    def require_epochs(self, epochs: int) -> None:
        """Refuse a training that ends within the first phase; a single epoch is let through."""
        phase = getattr(self, self.first_phase) if self.first_phase else 0
        if phase >= epochs > 1:
            raise InputError(
                f"method.{self.first_phase}={phase} of {self.name} leaves nothing of "
                f"training.epochs={epochs}; lower the first or raise the second."
            )

    def replace(self, **changes: Any) -> Self:
        """Return validated settings in which `changes` replace what they name."""
        return type(self).model_validate(self.model_dump() | changes)


def in_proportion(phase: int, whole: int, epochs: int) -> int:
    """Scale a phase of `phase` epochs out of `whole` to a training of `epochs`.

    A phase keeps at least one epoch and leaves at least one for what follows, except in a training
    of a single epoch, which has no room for both. A phase of 0 stays 0.
    """
    return max(min(1, phase), min(round(phase * epochs / whole), epochs - 1))


def layer_widths(*default: int, description: str = "", min_length: int = 1) -> Any:
    """Declare a setting that lists the widths of a head's layers."""
    usual = "widths of the projector's layers; the last is the embedding"
    return Field(default, min_length=min_length, description=description or usual)


class MethodOutput(NamedTuple):
    """Result of one step of a method.

    Attributes:
        loss: scalar to differentiate.
        terms: named parts of the loss over the global batch, detached, for logging.
        features: backbone features of the first view, `(batch, num_features)`, detached.
        embedding: input of the loss for the first view, `(batch, width)`, detached.
    """

    loss: Tensor
    terms: dict[str, Tensor]
    features: Tensor
    embedding: Tensor


class Method(nn.Module, ABC):
    """A backbone, its heads and an objective.

    The loop calls `begin_epoch`, then for every step `forward` and, after the optimizer's step,
    `after_step`; it averages `statistics` over an epoch before passing them to `summarize`.
    Everything a step depends on is a parameter or a buffer, so that checkpoints resume exactly.
    """

    backbone: nn.Module

    @abstractmethod
    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss of this rank's part of a batch.

        Args:
            views: one `(batch, 3, height, width)` tensor per view, local views last. Each passes
                through the network by itself, because BatchNorm must not mix views.
            samples: `(batch,)` positions of the images in the data, for methods with a memory.
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
        """Return health statistics of one batch of `(batch, width)` embeddings, to be averaged.

        The default is the spread of directions: 0 when collapsed, 1 when isotropic.
        """
        directions = F.normalize(embedding.float(), dim=-1)
        spread = directions.std(dim=0).mean() * directions.shape[-1] ** 0.5
        return {"spread": torch.nan_to_num(spread)}

    def summarize(self, statistics: Mapping[str, Tensor]) -> dict[str, float]:
        """Turn the averaged statistics of an epoch into named numbers."""
        return {name: float(value) for name, value in statistics.items()}


def mean_output(
    outputs: Sequence[LossOutput], features: Sequence[Tensor], embeddings: Sequence[Tensor]
) -> MethodOutput:
    """Average the losses of several pairs of views; features and embedding are the first view's."""
    terms = {
        name: torch.stack([output.terms[name] for output in outputs]).mean()
        for name in outputs[0].terms
    }
    loss = torch.stack([output.loss for output in outputs]).mean()
    return MethodOutput(loss, terms, features[0].detach(), embeddings[0].detach())
