"""Methods that are a backbone, a projector and a loss of two embeddings; and which views form pairs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from imsvd.methods.base import Method, MethodOutput, mean_output
from imsvd.networks import Last, feature_width, projector


class PairwiseMethod(Method):
    """Views through one network; the loss compares pairs of them.

    A subclass sets `loss`, which maps two `(batch, width)` embeddings to a `LossOutput`.
    """

    loss: nn.Module

    def __init__(self, backbone: nn.Module, widths: Sequence[int], last: Last = "bare") -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector((feature_width(backbone), *widths), last=last)

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the mean loss of all pairs."""
        del samples
        features = [self.backbone(view) for view in views]
        embeddings = [self.projector(feature) for feature in features]
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
