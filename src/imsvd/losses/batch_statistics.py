"""Statistics of the global batch that several losses share, gradients included.

Every function takes this rank's `(batch, width)` values and returns what one process with the whole
batch would; gradients follow the convention of `imsvd.distributed`.
"""

import torch
from torch import Tensor

from imsvd import distributed


def global_size(values: Tensor) -> int:
    """Number of samples over all ranks."""
    return len(values) * distributed.world_size()


def global_mean(values: Tensor) -> Tensor:
    """Mean over the samples of all ranks, `(batch, ...)` to `(...)`.

    Its gradient is right if every rank goes on to compute the same with it, and not if a rank
    compares it with its own samples: that is what `sample_mean` is for.
    """
    return distributed.mean_over_ranks_with_gradient(values.mean(0))


def sample_mean(values: Tensor) -> Tensor:
    """`global_mean` that a rank may compare with its own samples, `(batch, width)` to `(width,)`.

    Each rank then sees only its samples' part of the gradient, so the parts must be summed, which
    the backward pass of a gather does.
    """
    return distributed.all_gather_with_gradient(values.mean(0, keepdim=True)).mean(0)


def centered(values: Tensor) -> Tensor:
    """Values from which the mean over the global batch is taken."""
    return values - sample_mean(values)


def mean_squared_difference(first: Tensor, second: Tensor) -> Tensor:
    """Mean of (first − second)² over all entries of the global batch, a scalar."""
    return global_mean((first - second).square()).mean()


def moment_energy(first: Tensor, second: Tensor) -> Tensor:
    """Squared Frobenius norm of the cross-moment (1/N) firstᵀ second over the global batch.

    A matrix of width × width is built only if the batch is larger than the width. Otherwise samples
    are compared with samples, because ‖AᵀB‖² = ⟨AAᵀ, BBᵀ⟩, and batch × batch numbers suffice.

    Args:
        first: `(batch, width)`.
        second: the same, or the very same tensor, whose products are then computed once.

    Returns:
        A scalar.
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
