"""Methods whose loss looks at the embeddings along random lines: the lines, and the step they share."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd.losses.lejepa import LeJEPALoss
from imsvd.losses.visreg import VISRegLoss
from imsvd.methods.base import MethodOutput, ProjectedMethod, large_views


class RandomDirections(nn.Module):
    """Random unit vectors that depend on the number of the step alone, and thus are equal on all ranks.

    Attributes:
        steps: number of steps so far.
    """

    steps: Tensor

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.width, self.count = width, count
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        # What the host knows of the counter: reading it from a GPU would wait for all of the step.
        self._step: int | None = 0
        self.register_load_state_dict_post_hook(_forget_step)  # type: ignore[no-untyped-call]

    def forward(self) -> Tensor:
        """Return the directions of this step, `(width, count)`."""
        if self._step is None:
            self._step = int(self.steps)
        device = self.steps.device
        generator = torch.Generator(device).manual_seed(self._step)
        drawn = torch.randn(self.width, self.count, generator=generator, device=device)
        return F.normalize(drawn, dim=0)

    def advance(self) -> None:
        """Count the step."""
        self.steps += 1
        self._step = None if self._step is None else self._step + 1


def _forget_step(directions: RandomDirections, _keys: object) -> None:
    directions._step = None


class SlicedMethod(ProjectedMethod):
    """A method whose loss takes the embeddings of all views and random directions.

    A subclass sets `loss`, which maps a list of `(batch, width)` embeddings, large views first, and
    `(width, slices)` unit vectors to a `LossOutput`.
    """

    loss: LeJEPALoss | VISRegLoss

    def __init__(self, backbone: nn.Module, widths: Sequence[int], num_slices: int) -> None:
        # With a bias: the losses see the mean of the embedding.
        super().__init__(backbone, widths, last="bias")
        self.directions = RandomDirections(widths[-1], num_slices)

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss of all views along the directions of this step."""
        del samples
        features, embeddings = self.project(views)
        loss, terms = self.loss(embeddings, self.directions())
        return MethodOutput(loss, terms, large_views(features), embeddings[0].detach())

    def after_step(self, progress: float) -> None:
        """Draw other directions from now on."""
        del progress
        self.directions.advance()

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the terms of normal embeddings and of a network that says 0."""
        return self.loss.bounds(batch_size)
