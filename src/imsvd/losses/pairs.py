"""What losses of two equally shaped batches of embeddings share."""

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.information import at_least_float32


def checked_pair(loss: str, first: Tensor, second: Tensor, least: int = 1) -> tuple[Tensor, Tensor]:
    """Return two equal `(batch, width)` embeddings in float32 at least, or say what `loss` was given.

    `least` is how many samples all ranks together must have.
    """
    samples = len(first) * distributed.world_size()
    if first.shape != second.shape or first.ndim != 2 or samples < least:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        enough = f" of at least {least} samples" if least > 1 else ""
        raise InputError(f"{loss} needs two equal (batch, width) embeddings{enough}, got {shapes}.")
    return at_least_float32(first), at_least_float32(second)


def mean_cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the global batch of the cosine of each `(width,)` prediction with its target."""
    with torch.autocast(prediction.device.type, enabled=False):
        cosines = F.cosine_similarity(prediction, target, dim=1)
        return distributed.mean_over_ranks_with_gradient(cosines.mean())
