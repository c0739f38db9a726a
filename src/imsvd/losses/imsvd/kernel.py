"""The computation of the IMSVD loss: from logits to the gradients of the logits, one node of autograd.

As a chain of ordinary operations, the loss would keep both q, their gradients, and a copy of these
per term: more than eight times `(batch, width)`. Here the forward pass

1. computes q of all views and, for every pair of them, the diagonal of the joint matrix, a mean over
   the global batch;
2. computes the off-diagonal entropy and its gradients with respect to q, tile by tile;
3. drops q, recomputes it a few samples at a time, and pulls everything back to the logits.

Step 3 needs no handwritten derivative of the softmax or of the similarity. Once the joint matrix is
known, both entropies reach the logits through constant gradients of q, a sample at a time: those of
step 2 plus `slope · q2` and `slope · q1` from the diagonal. Autograd pulls them back together with
the similarity, and the result overwrites them. At most twice as many `(batch, width)` exist as views.

**Tiles.** P = q1ᵀ q2 / N is `(width, width)`, 66.6 million cells at the paper's size, and never exists
as a whole. Step 2 computes a tile of its rows, turns it in place into the slope of the loss, and
multiplies it into both gradients before the next tile takes its place:

    tile = e · q1[:, rows]ᵀ q2 / N             first matrix product
    tile = log(tile) = log P + 1, and 0 in diagonal blocks
    gradient of q1[:, rows] = q2 tileᵀ / N      second
    gradient of q2         += q1[:, rows] tile / N   third

The factor e supplies the "+ 1" of d(P log P)/dP for free, and the value needs no pass of its own:
Σ P (log P + 1) = ⟨q1, gradient of q1⟩, from which Σ P, known from N·M sums, is subtracted.

Within a view, q2 is q1: the matrix is symmetric, the second product gives half of the gradient, and
there is no third. A view that belongs to several pairs is computed once.

Probabilities are kept above `sqrt(tiny)`, so that cells never underflow and their logarithms and
slopes stay finite at exact zeros and at exact collapse; the value changes by less than rounding.

**Ranks.** With W ranks and a global batch of N samples, each rank owns a contiguous W-th of the
rows. Per rank and step, with D the width:

| | |
|---|---|
| floating-point operations | 6 N D² / W |
| received by the all-gather of q1 and q2 | 2 N D (W - 1) / W numbers |
| received by the all-to-all of the gradient of q1 | N D (W - 1) / W² numbers |
| received by the reduce-scatter of the gradient of q2 | N D (W - 1) / W numbers (gloo: double) |
| memory beyond the local batch | (3 + 1 / W) N D numbers and one tile |

Within a view, there are 4 N D² / W operations, one all-gather of N D numbers and no reduce-scatter.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imsvd import distributed
from imsvd.information import at_least_float32, entropy, soft_discretize, variable_sums
from imsvd.losses.base import LossOutput
from imsvd.losses.imsvd.bounds import TermFactors

# Samples treated together in step 3 fill this much per tensor: few enough to stay in cache.
CHUNK_BYTES = 2 * 2**20
# On CPU, tiles of 1,024 rows are up to 1.05 times as fast as 512 and 1.2 times as fast as 128, at
# widths of 8,160 to 65,280: tall matrix products matter more than a tile that fits the cache.
TILE_BYTES = 128 * 2**20
MAX_TILE_ROWS = 1024


Pairs = Sequence[tuple[int, int]]
"""Positions of the two views of every pair that is compared."""


class LossShape(NamedTuple):
    """Everything about the loss that is not data.

    Attributes:
        sizes: units of each variable.
        cross_entropy: whether the invariance term is TIC instead of TI.
        scales: factors of the sums, from the normalization.
        weights: factors of the scaled terms.
        within_views: whether the off-diagonal entropy is that of each view by itself.
        tile_rows: rows of the joint matrix held at a time, or None.
    """

    sizes: tuple[int, ...]
    cross_entropy: bool
    scales: TermFactors
    weights: TermFactors
    within_views: bool
    tile_rows: int | None


def fused_loss(views: Sequence[Tensor], pairs: Pairs, shape: LossShape) -> LossOutput:
    """Mean loss of `pairs` of views, and the terms that were computed.

    Args:
        views: logits, `(batch, width)` each.
        pairs: positions of the two views of every pair.
        shape: everything else.
    """
    if torch.is_grad_enabled() and any(view.requires_grad for view in views):
        loss, *terms = _FusedLoss.apply(shape, tuple(pairs), *views)
    else:
        (loss, *terms), _ = _evaluate(views, pairs, shape, with_gradients=False)
    return LossOutput(loss, dict(zip(TermFactors._fields, terms, strict=False)))


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shape: LossShape, pairs: Pairs, *views: Tensor) -> tuple[Tensor, ...]:
        values, gradients = _evaluate(views, pairs, shape, with_gradients=True)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [view.dtype for view in views]
        ctx.mark_non_differentiable(*values[1:])
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The gradient of the joint entropy is computed in the forward pass and cannot be "
                "differentiated again: call backward without create_graph=True."
            )
        saved = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        # Out of place: the graph may be kept and walked again.
        return (None, None, *((tensor * gradients[0]).to(dtype) for tensor, dtype in saved))


def _evaluate(
    views: Sequence[Tensor], pairs: Pairs, shape: LossShape, with_gradients: bool
) -> tuple[tuple[Tensor, ...], Sequence[Tensor]]:
    """(total, terms in the order of `TermFactors`) and, if wanted, the gradients of the logits."""
    scales, weights = shape.scales, shape.weights
    with torch.autocast(views[0].device.type, enabled=False), torch.no_grad():
        qs = [keep_positive_(soft_discretize(view, shape.sizes)) for view in views]
        diagonals = torch.stack([diagonal_joint(qs[a], qs[b]) for a, b in pairs])
        entropies = [
            -scales.diagonal_entropy * torch.stack([entropy(row) for row in diagonals]).mean()
        ]
        gradients: list[Tensor] | None = None
        if weights.off_diagonal_entropy:
            # The world size turns a share of the global gradient into what DDP is to average.
            weight = weights.off_diagonal_entropy * scales.off_diagonal_entropy
            scale = weight * distributed.world_size() if with_gradients else None
            value, gradients = _off_diagonal_of_views(qs, pairs, shape, scale)
            entropies.append(scales.off_diagonal_entropy * value)
        elif with_gradients:
            gradients = [torch.zeros_like(q) for q in qs]
        del qs
        slopes = weights.diagonal_entropy * scales.diagonal_entropy * (diagonals.log() + 1)
        slopes /= len(pairs)
        terms = (_pull_back(views, pairs, shape, slopes, gradients), *entropies)
        total = torch.stack([w * t for w, t in zip(weights, terms, strict=False)]).sum()
        return (total, *terms), gradients or ()


def keep_positive_(q: Tensor) -> Tensor:
    """Raise probabilities, in place, until products of two of them are normal numbers."""
    return q.clamp_(min=8 * math.sqrt(torch.finfo(q.dtype).tiny))


def inner_product(q1: Tensor, q2: Tensor, sizes: Sequence[int]) -> Tensor:
    """TI, first term of Eq. 11: mean over samples and variables of -log ⟨q1(m, :), q2(m, :)⟩.

    A scalar over the `(batch, width)` samples given, finite even where two one-hot views disagree.
    """
    similarity = variable_sums(q1 * q2, sizes)
    return -similarity.clamp_min(torch.finfo(similarity.dtype).tiny).log().mean()


def cross_entropy(q1: Tensor, q2: Tensor, sizes: Sequence[int]) -> Tensor:
    """TIC, the ablation below Eq. 11: mean over samples and variables of -Σ_d q1 log q2, a scalar."""
    log_q2 = q2.clamp_min(torch.finfo(q2.dtype).tiny).log()
    return -variable_sums(q1 * log_q2, sizes).mean()


def diagonal_joint(q1: Tensor, q2: Tensor) -> Tensor:
    """Diagonal of the joint matrix (Eq. 10) over the global batch: `(width,)`."""
    total = torch.zeros_like(q1[0])
    for rows in _chunks(q1):
        total += (q1[rows] * q2[rows]).sum(0)
    return distributed.all_reduce_sum(total) / (distributed.world_size() * len(q1))


def _pull_back(
    views: Sequence[Tensor],
    pairs: Pairs,
    shape: LossShape,
    slopes: Tensor,
    gradients: list[Tensor] | None,
) -> Tensor:
    """Similarity over the global batch; turns gradients of q, in place, into those of the logits.

    The local means over samples need no factor for the ranks: DDP's average of them is global.
    """
    similarity_of = cross_entropy if shape.cross_entropy else inner_product
    similarity = slopes.new_zeros(())
    weight = torch.full_like(similarity, shape.weights.invariance)
    batch = len(views[0])
    for rows in _chunks(views[0]):
        with torch.set_grad_enabled(gradients is not None):
            logits = [at_least_float32(view[rows].detach()) for view in views]
            for view in logits:
                view.requires_grad_(gradients is not None)
            qs = [soft_discretize(view, shape.sizes) for view in logits]
            of_pairs = [similarity_of(qs[a], qs[b], shape.sizes) for a, b in pairs]
            chunk = torch.stack(of_pairs).mean() * (len(qs[0]) / batch)
        similarity += chunk.detach()
        if gradients is not None:
            of_q = [gradient[rows] for gradient in gradients]
            for (a, b), slope in zip(pairs, slopes, strict=True):
                of_q[a].addcmul_(slope, qs[b], value=1 / batch)
                of_q[b].addcmul_(slope, qs[a], value=1 / batch)
            pulled = torch.autograd.grad((chunk, *qs), logits, (weight, *of_q))
            for gradient, of_logits in zip(of_q, pulled, strict=True):
                gradient.copy_(of_logits)
    return distributed.all_reduce_sum(similarity) / distributed.world_size()


def _chunks(values: Tensor) -> list[slice]:
    rows = max(1, CHUNK_BYTES // (values.shape[1] * values.element_size()))
    return [slice(start, start + rows) for start in range(0, len(values), rows)]


class OffDiagonal(NamedTuple):
    """Σ P log P over all cells of the off-diagonal blocks, and its gradients.

    Attributes:
        value: scalar, over the global batch.
        gradients: scaled gradients of the q of every view, `(batch, width)` each; None if not requested.
    """

    value: Tensor
    gradients: list[Tensor] | None


def _off_diagonal_of_views(
    qs: Sequence[Tensor], pairs: Pairs, shape: LossShape, scale: float | None
) -> OffDiagonal:
    """Mean over pairs of the entropies between their views (Eq. 11), or within each (Eq. 9)."""
    if shape.within_views:
        return _off_diagonal_within(qs, pairs, shape, scale)
    of_pair = None if scale is None else scale / len(pairs)
    values = []
    gradients: dict[int, Tensor] = {}
    for pair in pairs:
        first, second = (qs[view] for view in pair)
        found = off_diagonal(first, second, shape.sizes, of_pair, shape.tile_rows)
        values.append(found.value)
        for view, gradient in zip(pair, found.gradients or (), strict=False):
            known = gradients.get(view)
            gradients[view] = gradient if known is None else known.add_(gradient)
    ordered = None if scale is None else [gradients[view] for view in range(len(qs))]
    return OffDiagonal(torch.stack(values).mean(), ordered)


def _off_diagonal_within(
    qs: Sequence[Tensor], pairs: Pairs, shape: LossShape, scale: float | None
) -> OffDiagonal:
    """Mean over the views of all pairs; a view of several pairs is computed once."""
    value = qs[0].new_zeros(())
    gradients: list[Tensor] = []
    for view, q in enumerate(qs):
        share = sum(view in pair for pair in pairs) / (2 * len(pairs))
        # The matrix of one view is symmetric: the gradients of its two sides are equal.
        of_both_sides = None if scale is None else 2 * scale * share
        found = off_diagonal(q, None, shape.sizes, of_both_sides, shape.tile_rows)
        value = value + share * found.value
        gradients += found.gradients or []
    return OffDiagonal(value, None if scale is None else gradients)


def off_diagonal(
    q1: Tensor,
    q2: Tensor | None,
    sizes: Sequence[int],
    gradient_scale: float | None,
    tile_rows: int | None,
) -> OffDiagonal:
    """OE without its scale: the value and, unless `gradient_scale` is None, the gradients; no autograd.

    Args:
        q1: `(batch, width)`, this rank's samples, from `keep_positive_`.
        q2: the same of the other view; None stands for `q1` again, and gives the gradient of one
            side only, at two thirds of the operations.
        sizes: units of each variable.
        gradient_scale: nonzero factor of the gradients. `world_size` times the weight of the term
            makes DDP's average the gradient of the global loss.
        tile_rows: rows of the joint matrix held at a time, or None.
    """
    with torch.autocast(q1.device.type, enabled=False), torch.no_grad():
        everyone = distributed.all_gather(q1)
        other = everyone if q2 is None else distributed.all_gather(q2)
        tiles = _Tiles(everyone, other, sizes, tile_rows)
        if gradient_scale is None:
            return OffDiagonal(distributed.all_reduce_sum(tiles.value()), None)
        share, columns, partial = tiles.gradients(gradient_scale, both=q2 is not None)
        own_mass = _off_diagonal_mass(q1, q1 if q2 is None else q2, sizes) / tiles.batch
        value = distributed.all_reduce_sum(share - own_mass)
        widths = distributed.share_sizes(sum(sizes))
        del tiles
        gradients = [distributed.columns_to_owners(columns, widths)]
        if partial is not None:
            gradients.append(distributed.reduce_scatter_sum(partial))
        return OffDiagonal(value, gradients)


def _off_diagonal_mass(q1: Tensor, q2: Tensor, sizes: Sequence[int]) -> Tensor:
    """Σ over samples and off-diagonal cells of q1 q2; batch · M (M - 1) if q sums to 1."""
    first, second = variable_sums(q1, sizes), variable_sums(q2, sizes)
    return (first.sum(-1) * second.sum(-1) - (first * second).sum(-1)).sum()


class _Tiles:
    """This rank's rows of the joint matrix of the global batch, a tile at a time."""

    def __init__(self, q1: Tensor, q2: Tensor, sizes: Sequence[int], tile_rows: int | None) -> None:
        self.q1, self.q2 = q1, q2
        self.batch, self.width = q1.shape
        self.own = distributed.own_slice(self.width)
        self.variables = list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))
        self.tile_rows = tile_rows or default_tile_rows(self.width, q1.element_size())
        rows = min(self.tile_rows, self.own.stop - self.own.start)
        self.buffer = q1.new_empty(rows * self.width)

    def value(self) -> Tensor:
        """Σ P log P over this rank's rows; one matrix product per tile."""
        total = self.q1.new_zeros(())
        for rows in self._rows():
            tile = self._tile(rows, 1.0)
            torch.special.entr(tile, out=tile)
            total -= self._without_diagonal_blocks(tile, rows).sum()
        return total

    def gradients(self, scale: float, *, both: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Σ P (log P + 1), gradient of `q1` for own columns, this rank's part of that of `q2` if `both`."""
        columns = self.q1.new_empty(self.batch, self.own.stop - self.own.start)
        partial = torch.zeros_like(self.q2) if both else None
        total = self.q1.new_zeros(())
        alpha = scale / self.batch
        for rows in self._rows():
            slope = self._without_diagonal_blocks(self._tile(rows, math.e).log_(), rows)
            q1 = self.q1[:, rows]
            own = columns[:, rows.start - self.own.start : rows.stop - self.own.start]
            own.addmm_(self.q2, slope.T, beta=0, alpha=alpha)
            if partial is not None:
                partial.addmm_(q1, slope, alpha=alpha)
            total += (q1 * own).sum()
        return total / scale, columns, partial

    def _rows(self) -> list[slice]:
        starts = range(self.own.start, self.own.stop, self.tile_rows)
        return [slice(start, min(start + self.tile_rows, self.own.stop)) for start in starts]

    def _tile(self, rows: slice, factor: float) -> Tensor:
        """`factor` times rows of P, `(rows, width)`, in the shared buffer."""
        height = rows.stop - rows.start
        tile = self.buffer[: height * self.width].view(height, self.width)
        # beta = 0 ignores what the buffer held, even NaN.
        return tile.addmm_(self.q1[:, rows].T, self.q2, beta=0, alpha=factor / self.batch)

    def _without_diagonal_blocks(self, tile: Tensor, rows: slice) -> Tensor:
        for start, stop in self.variables:
            top, bottom = max(start, rows.start), min(stop, rows.stop)
            if top < bottom:
                tile[top - rows.start : bottom - rows.start, start:stop] = 0
        return tile


def default_tile_rows(width: int, element_size: int) -> int:
    """Rows whose tile fills `TILE_BYTES`, in whole steps of 16 for the matrix kernels."""
    rows = TILE_BYTES // (width * element_size)
    return max(16, min(MAX_TILE_ROWS, rows // 16 * 16))
