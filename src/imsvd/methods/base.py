"""Methods as the training loop sees them, and the forms that several of them share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd.information import dead_units, one_hotness, soft_discretize
from imsvd.losses.base import LossOutput
from imsvd.networks import Last, feature_width, projector


class MethodOutput(NamedTuple):
    """Result of one step of a method.

    Attributes:
        loss: scalar to differentiate.
        terms: named parts of the loss over the global batch, detached, for logging.
        features: backbone features of the two large views, `(batch, num_features)` each, detached;
            the second is a momentum network's where no other sees that view.
        embedding: input of the loss for the first view, `(batch, width)`, detached.
    """

    loss: Tensor
    terms: dict[str, Tensor]
    features: tuple[Tensor, Tensor]
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


class DiscreteMethod(Method):
    """A method whose embedding is the logits of discrete variables; `units` are those of each."""

    units: tuple[int, ...]

    def statistics(self, embedding: Tensor) -> dict[str, Tensor]:
        """Return how discrete the codes are and how evenly the units are used."""
        probabilities = soft_discretize(embedding, self.units)
        return {
            "share_above_0.9": one_hotness(probabilities, self.units, 0.9),
            "share_above_0.99": one_hotness(probabilities, self.units, 0.99),
            "marginals": probabilities.mean(dim=0),
        }

    def summarize(self, statistics: Mapping[str, Tensor]) -> dict[str, float]:
        """Replace the epoch's average marginals by the number of dead units."""
        return {
            "share_above_0.9": float(statistics["share_above_0.9"]),
            "share_above_0.99": float(statistics["share_above_0.99"]),
            "dead_units": float(dead_units(statistics["marginals"], self.units)),
        }


def mean_output(
    outputs: Sequence[LossOutput], features: Sequence[Tensor], embeddings: Sequence[Tensor]
) -> MethodOutput:
    """Average the losses of several pairs of views; the embedding is the first view's."""
    terms = {
        name: torch.stack([output.terms[name] for output in outputs]).mean()
        for name in outputs[0].terms
    }
    loss = torch.stack([output.loss for output in outputs]).mean()
    return MethodOutput(loss, terms, large_views(features), embeddings[0].detach())


def large_views(features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the features of the two large views, which come first, detached."""
    return features[0].detach(), features[1].detach()


class ProjectedMethod(Method):
    """A method whose backbone is followed by a projector of `widths`, which ends as `last` says."""

    def __init__(self, backbone: nn.Module, widths: Sequence[int], last: Last = "bare") -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector((feature_width(backbone), *widths), last=last)

    def project(self, views: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the features and the embeddings of every view."""
        features = [self.backbone(view) for view in views]
        return features, [self.projector(feature) for feature in features]


class PairwiseMethod(ProjectedMethod):
    """A method whose loss compares the embeddings of pairs of views.

    A subclass sets `loss`, which maps two `(batch, width)` embeddings to a `LossOutput`.
    """

    loss: nn.Module

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the mean loss of all pairs."""
        del samples
        features, embeddings = self.project(views)
        outputs = [self.loss(embeddings[a], embeddings[b]) for a, b in view_pairs(len(views))]
        return mean_output(outputs, features, embeddings)


def view_pairs(count: int) -> list[tuple[int, int]]:
    """Return the pairs to compare: the two large views, and each of them with every local one."""
    return [(0, 1), *((large, local) for local in range(2, count) for large in (0, 1))]


def prediction_pairs(count: int) -> list[tuple[int, int]]:
    """Return pairs (predicting view, target view), for methods whose two sides differ.

    Every view predicts the large views other than itself; local views are never targets.
    """
    return [(view, target) for target in (0, 1) for view in range(count) if view != target]
