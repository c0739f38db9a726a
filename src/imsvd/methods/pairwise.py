"""Methods that are a backbone, a projector and a loss of two embeddings, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from imsvd.methods.base import Method, MethodOutput, average_terms


class PairwiseMethod(Method):
    """Views through one network; the loss compares pairs of them.

    A subclass sets `backbone`, `projector` and `loss`, which maps two (batch, width) embeddings to a
    `LossOutput`.
    """

    projector: nn.Module
    loss: nn.Module

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss; each view is its own pass, because BatchNorm must not mix them."""
        del samples
        features = [self.backbone(view) for view in views]
        embeddings = [self.projector(feature) for feature in features]
        outputs = [self.loss(embeddings[a], embeddings[b]) for a, b in view_pairs(len(views))]
        return MethodOutput(
            torch.stack([output.loss for output in outputs]).mean(),
            average_terms([output.terms for output in outputs]),
            features[0].detach(),
            embeddings[0].detach(),
        )


def view_pairs(count: int) -> list[tuple[int, int]]:
    """The pairs that are compared: the two large views, and each of them with every local one."""
    return [(0, 1), *((large, local) for local in range(2, count) for large in (0, 1))]
