"""What losses share: their base class and result, input checks, statistics of the global batch.

The statistics take this rank's `(batch, width)` values and return what one process with the whole
batch would; gradients follow the convention of `imsvd.distributed`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.information import at_least_float32


class LossOutput(NamedTuple):
    """A loss to differentiate, and its parts for logging.

    Attributes:
        loss: scalar; its gradient follows the convention of `imsvd.distributed`.
        terms: detached scalars without their weights, over the global batch of all ranks.
    """

    loss: Tensor
    terms: dict[str, Tensor]


class Loss(nn.Module):
    """Base of every loss; `print(loss)` shows its settings.

    Every loss computes in float32 (or float64) whatever the autocast state.
    """

    def extra_repr(self) -> str:
        """Return the settings, which are the public attributes."""
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return ", ".join(f"{k}={v!r}" for k, v in public.items() if k != "training")


def sum_of_means(**parts: Tensor) -> LossOutput:
    """Sum this rank's mean `parts`, averaged over ranks; each part is also a term."""
    values = distributed.mean_over_ranks_with_gradient(torch.stack(list(parts.values())))
    return LossOutput(values.sum(), dict(zip(parts, values.detach(), strict=True)))


def checked_pair(loss: str, first: Tensor, second: Tensor, least: int = 1) -> tuple[Tensor, Tensor]:
    """Return two `(batch, width)` embeddings of equal shape in float32 at least, or raise for `loss`.

    `least` is the smallest number of samples over all ranks.
    """
    samples = len(first) * distributed.world_size()
    if first.shape != second.shape or first.ndim != 2 or samples < least:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        enough = f" of at least {least} samples" if least > 1 else ""
        raise InputError(f"{loss} needs two equal (batch, width) embeddings{enough}, got {shapes}.")
    return at_least_float32(first), at_least_float32(second)


def checked_views(loss: str, views: Sequence[Tensor], least: int = 1) -> list[Tensor]:
    """Return two or more `(batch, width)` embeddings of equal shape like `checked_pair`, or raise."""
    for view in views[1:]:
        checked_pair(loss, views[0], view, least)
    if len(views) < 2:
        raise InputError(f"{loss} needs the embeddings of two or more views, got {len(views)}.")
    return [at_least_float32(view) for view in views]


def mean_cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the global batch of the cosine of each `(width,)` prediction with its target."""
    with torch.autocast(prediction.device.type, enabled=False):
        cosines = F.cosine_similarity(prediction, target, dim=1)
        return distributed.mean_over_ranks_with_gradient(cosines.mean())


def global_size(values: Tensor) -> int:
    """Number of samples over all ranks."""
    return len(values) * distributed.world_size()


def global_mean(values: Tensor) -> Tensor:
    """Mean over the samples of all ranks, `(batch, ...)` to `(...)`.

    Its gradient is right only if every rank computes the same from it. A rank that combines the
    mean with its own samples needs `sample_mean`.
    """
    return distributed.mean_over_ranks_with_gradient(values.mean(0))


def sample_mean(values: Tensor) -> Tensor:
    """`global_mean` for use with a rank's own samples, `(batch, width)` to `(width,)`.

    Each rank then holds only its samples' part of the gradient; the backward pass of the gather
    sums the parts.
    """
    return distributed.all_gather_with_gradient(values.mean(0, keepdim=True)).mean(0)


def centered(values: Tensor) -> Tensor:
    """Values minus their mean over the global batch."""
    return values - sample_mean(values)


def mean_squared_difference(first: Tensor, second: Tensor) -> Tensor:
    """Mean of (first − second)² over all entries of the global batch, a scalar."""
    return global_mean((first - second).square()).mean()


def moment_energy(first: Tensor, second: Tensor) -> Tensor:
    """Squared Frobenius norm of the cross-moment (1/N) firstᵀ second over the global batch, a scalar.

    A width × width matrix is built only if the batch is larger than the width. Otherwise samples
    are compared with samples, because ‖AᵀB‖² = ⟨AAᵀ, BBᵀ⟩, and batch × batch numbers suffice.

    Args:
        first: `(batch, width)`.
        second: the same shape; if it is the same tensor, products are computed once.
    """
    size = global_size(first)
    if size > first.shape[1]:
        local_moment = first.T @ second / len(first)
        return distributed.mean_over_ranks_with_gradient(local_moment).square().sum()
    products = _sample_products(first)
    others = products if second is first else _sample_products(second)
    return (products * others).sum() / size**2


def _sample_products(values: Tensor) -> Tensor:
    """Inner products of all samples of the global batch with each other."""
    everyone = distributed.all_gather_with_gradient(values)
    return torch.mm(everyone, everyone.T)
