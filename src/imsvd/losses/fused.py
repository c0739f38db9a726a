"""The whole IMSVD loss, from logits to the gradients of the logits, as one node of autograd.

Written as a chain of ordinary operations, the loss would keep both q, their gradients, and a copy
of these per term: more than eight times `(batch, width)`. Here the forward pass

1. makes q of both views and the diagonal of the joint matrix, a mean over the global batch;
2. gets the off-diagonal entropy and its gradients with respect to q, tile by tile;
3. forgets q and, a few samples at a time, makes it again and pulls everything back to the logits.

Step 3 needs no derivative of the softmax or of the similarity written by hand. Once the joint
matrix is known, both entropies reach the logits through constant gradients of q, a sample at a
time: those of step 2 plus `slope · q2` and `slope · q1` from the diagonal. Autograd pulls them back
together with the similarity, and the result overwrites them. At most four times `(batch, width)`
exist.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imsvd import distributed
from imsvd.information import Units, at_least_float32, entropy, soft_discretize
from imsvd.losses.base import LossOutput
from imsvd.losses.bounds import TermFactors
from imsvd.losses.joint_entropy import OffDiagonal, keep_positive_, off_diagonal, scaled_gradients

# Samples treated together in step 3 fill this much per tensor: few enough to stay in cache.
CHUNK_BYTES = 2 * 2**20


class LossShape(NamedTuple):
    """Everything about the loss that is not data.

    Attributes:
        sizes: units of each variable.
        similarity: the invariance term, a mean over samples.
        scales: factors of the sums, from the normalization.
        weights: factors of the scaled terms.
        within_views: whether the off-diagonal entropy is that of each view by itself.
        tile_rows: rows of the joint matrix held at a time, or None.
    """

    sizes: tuple[int, ...]
    similarity: Callable[[Tensor, Tensor, Units], Tensor]
    scales: TermFactors
    weights: TermFactors
    within_views: bool
    tile_rows: int | None


def fused_loss(first: Tensor, second: Tensor, shape: LossShape) -> LossOutput:
    """Loss of two views' logits, `(batch, width)` each, and the terms that were computed."""
    if torch.is_grad_enabled() and (first.requires_grad or second.requires_grad):
        loss, *terms = _FusedLoss.apply(first, second, shape)
    else:
        (loss, *terms), _ = _evaluate(first, second, shape, with_gradients=False)
    return LossOutput(loss, dict(zip(TermFactors._fields, terms, strict=False)))


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, shape: LossShape) -> tuple[Tensor, ...]:
        values, gradients = _evaluate(first, second, shape, with_gradients=True)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = first.dtype, second.dtype
        ctx.mark_non_differentiable(*values[1:])
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*scaled_gradients(ctx, gradients[0]), None)


def _evaluate(
    first: Tensor, second: Tensor, shape: LossShape, with_gradients: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor] | tuple[()]]:
    """(total, terms in the order of `TermFactors`) and, if wanted, the gradients of the logits."""
    scales, weights = shape.scales, shape.weights
    with torch.autocast(first.device.type, enabled=False), torch.no_grad():
        q1 = keep_positive_(soft_discretize(first, shape.sizes))
        q2 = keep_positive_(soft_discretize(second, shape.sizes))
        diagonal = _diagonal_joint(q1, q2)
        entropies = [-scales.diagonal_entropy * entropy(diagonal)]
        gradients: tuple[Tensor, Tensor] | None = None
        if weights.off_diagonal_entropy:
            # The world size turns a share of the global gradient into what DDP is to average.
            weight = weights.off_diagonal_entropy * scales.off_diagonal_entropy
            scale = weight * distributed.world_size() if with_gradients else None
            value, gradients = _off_diagonal(q1, q2, shape, scale)
            entropies.append(scales.off_diagonal_entropy * value)
        elif with_gradients:
            gradients = torch.zeros_like(q1), torch.zeros_like(q2)
        del q1, q2
        slope = weights.diagonal_entropy * scales.diagonal_entropy * (diagonal.log() + 1)
        terms = (_pull_back(first, second, shape, slope, gradients), *entropies)
        total = torch.stack([w * t for w, t in zip(weights, terms, strict=False)]).sum()
        return (total, *terms), gradients or ()


def _off_diagonal(q1: Tensor, q2: Tensor, shape: LossShape, scale: float | None) -> OffDiagonal:
    """Off-diagonal entropy between the views, or the mean of those within each."""
    if not shape.within_views:
        return off_diagonal(q1, q2, shape.sizes, scale, shape.tile_rows)
    values, gradients = [], []
    for q in (q1, q2):
        half = None if scale is None else scale / 2
        value, of_both_sides = off_diagonal(q, q, shape.sizes, half, shape.tile_rows)
        values.append(value / 2)
        if of_both_sides is not None:
            gradients.append(of_both_sides[0].add_(of_both_sides[1]))
    return OffDiagonal(values[0] + values[1], (gradients[0], gradients[1]) if gradients else None)


def _pull_back(
    first: Tensor,
    second: Tensor,
    shape: LossShape,
    slope: Tensor,
    gradients: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Similarity over the global batch; turns gradients of q, in place, into those of the logits.

    The local means over samples need no factor for the ranks: DDP's average of them is global.
    """
    similarity = slope.new_zeros(())
    weight = torch.full_like(similarity, shape.weights.invariance)
    for rows in _chunks(first):
        with torch.set_grad_enabled(gradients is not None):
            logits = [at_least_float32(view[rows].detach()) for view in (first, second)]
            for view in logits:
                view.requires_grad_(gradients is not None)
            q1, q2 = (soft_discretize(view, shape.sizes) for view in logits)
            chunk = shape.similarity(q1, q2, shape.sizes) * (len(q1) / len(first))
        similarity += chunk.detach()
        if gradients is not None:
            of_q = [gradient[rows] for gradient in gradients]
            for gradient, other in zip(of_q, (q2, q1), strict=True):
                gradient.addcmul_(slope, other, value=1 / len(first))
            pulled = torch.autograd.grad((chunk, q1, q2), logits, (weight, *of_q))
            for gradient, of_logits in zip(of_q, pulled, strict=True):
                gradient.copy_(of_logits)
    return distributed.all_reduce_sum(similarity) / distributed.world_size()


def _diagonal_joint(q1: Tensor, q2: Tensor) -> Tensor:
    """Diagonal of the joint matrix over the global batch: `(width,)`."""
    total = torch.zeros_like(q1[0])
    for rows in _chunks(q1):
        total += (q1[rows] * q2[rows]).sum(0)
    return distributed.all_reduce_sum(total) / (distributed.world_size() * len(q1))


def _chunks(values: Tensor) -> list[slice]:
    rows = max(1, CHUNK_BYTES // (values.shape[1] * values.element_size()))
    return [slice(start, start + rows) for start in range(0, len(values), rows)]
