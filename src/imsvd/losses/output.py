"""What every loss returns."""

from typing import NamedTuple

from torch import Tensor


class LossOutput(NamedTuple):
    """A loss to call `backward` on, and its parts to look at.

    Attributes:
        loss: scalar; its gradient follows the convention of `imsvd.distributed`.
        terms: detached scalars without their weights, over the global batch of all ranks.
    """

    loss: Tensor
    terms: dict[str, Tensor]
