"""Entropy of the off-diagonal blocks of the cross-joint matrix, tile by tile and rank by rank.

P = q1ᵀ q2 / N is `(width, width)`, 66.6 million cells at the paper's size, and need never exist. A
tile of its rows is made, turned in place into the slope of the loss, and multiplied into both
gradients before the next one takes its place:

    tile = e · q1[:, rows]ᵀ q2 / N             first matrix product
    tile = log(tile) = log P + 1, and 0 in diagonal blocks
    gradient of q1[:, rows] = q2 tileᵀ / N      second
    gradient of q2         += q1[:, rows] tile / N   third

The factor e supplies the "+ 1" of d(P log P)/dP for free, and the value needs no pass of its own:
Σ P (log P + 1) = ⟨q1, gradient of q1⟩, from which Σ P, known from N·M sums, is subtracted.

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
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imsvd import distributed
from imsvd.information import Units, at_least_float32, resolve_units, variable_sums

# On CPU, tiles of 1,024 rows are up to 1.05 times as fast as 512 and 1.2 times as fast as 128, at
# widths of 8,160 to 65,280: tall matrix products matter more than a tile that fits the cache.
TILE_BYTES = 128 * 2**20
MAX_TILE_ROWS = 1024

_ONCE_ONLY = (
    "The gradient of the joint entropy is computed in the forward pass and cannot be "
    "differentiated again: call backward without create_graph=True."
)


class OffDiagonal(NamedTuple):
    """Σ P log P over all cells of the off-diagonal blocks, and its gradients.

    Attributes:
        value: scalar, over the global batch.
        gradients: of `q1` and `q2`, `(batch, width)` each, times the scale that was asked for;
            None if only the value was wanted.
    """

    value: Tensor
    gradients: tuple[Tensor, Tensor] | None


def off_diagonal_entropy_sum(
    q1: Tensor, q2: Tensor, units: Units, tile_rows: int | None = None
) -> Tensor:
    """Σ P^c log P^c over all cells of the off-diagonal blocks, differentiable once.

    Args:
        q1: `(batch, width)` probabilities of one view; with several ranks, this rank's samples.
        q2: the same of the other view.
        units: units of all variables, or of each.
        tile_rows: rows of the joint matrix held at a time; chosen from the width by default.

    Returns:
        A scalar, minus the sum of the entropies of all ordered pairs of variables.
    """
    if torch.is_grad_enabled() and (q1.requires_grad or q2.requires_grad):
        value: Tensor = _OffDiagonalEntropySum.apply(q1, q2, units, tile_rows)
        return value
    return off_diagonal(keep_positive(q1), keep_positive(q2), units, None, tile_rows).value


class _OffDiagonalEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q1: Tensor, q2: Tensor, units: Units, tile_rows: int | None) -> Tensor:
        scale = float(distributed.world_size())
        result = off_diagonal(keep_positive(q1), keep_positive(q2), units, scale, tile_rows)
        assert result.gradients is not None
        ctx.save_for_backward(*result.gradients)
        ctx.dtypes = q1.dtype, q2.dtype
        return result.value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*scaled_gradients(ctx, gradients[0]), None, None)


def scaled_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
    """Saved gradients times the incoming one, in the dtypes of the inputs; never twice."""
    if torch.is_grad_enabled():
        raise RuntimeError(_ONCE_ONLY)
    saved = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
    # Out of place: the graph may be kept and walked again.
    return tuple((tensor * gradient).to(dtype) for tensor, dtype in saved)


def keep_positive(q: Tensor) -> Tensor:
    """Detached copy in float32 at least, large enough for products of two entries to be normal."""
    return keep_positive_(at_least_float32(q.detach()).clone())


def keep_positive_(q: Tensor) -> Tensor:
    """`keep_positive` in place, for probabilities nobody else holds."""
    return q.clamp_(min=8 * math.sqrt(torch.finfo(q.dtype).tiny))


def off_diagonal(
    q1: Tensor, q2: Tensor, units: Units, gradient_scale: float | None, tile_rows: int | None
) -> OffDiagonal:
    """Value and, unless `gradient_scale` is None, gradients; no autograd.

    Args:
        q1: `(batch, width)`, this rank's samples, from `keep_positive`.
        q2: the same of the other view.
        units: units of all variables, or of each.
        gradient_scale: nonzero factor of the gradients. `world_size` times the weight of the term
            makes DDP's average the gradient of the global loss.
        tile_rows: rows of the joint matrix held at a time, or None.
    """
    sizes = resolve_units(q1.shape[-1], units)
    with torch.autocast(q1.device.type, enabled=False), torch.no_grad():
        tiles = _Tiles(distributed.all_gather(q1), distributed.all_gather(q2), sizes, tile_rows)
        if gradient_scale is None:
            return OffDiagonal(distributed.all_reduce_sum(tiles.value()), None)
        share, columns, partial = tiles.gradients(gradient_scale)
        own_mass = _off_diagonal_mass(q1, q2, sizes) / tiles.batch
        value = distributed.all_reduce_sum(share - own_mass)
        widths = distributed.share_sizes(sum(sizes))
        del tiles
        first = distributed.columns_to_owners(columns, widths)
        return OffDiagonal(value, (first, distributed.reduce_scatter_sum(partial)))


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

    def gradients(self, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Σ P (log P + 1), gradient of `q1` for own columns, this rank's part of that of `q2`."""
        columns = self.q1.new_empty(self.batch, self.own.stop - self.own.start)
        partial = torch.zeros_like(self.q2)
        total = self.q1.new_zeros(())
        alpha = scale / self.batch
        for rows in self._rows():
            slope = self._without_diagonal_blocks(self._tile(rows, math.e).log_(), rows)
            q1 = self.q1[:, rows]
            own = columns[:, rows.start - self.own.start : rows.stop - self.own.start]
            own.addmm_(self.q2, slope.T, beta=0, alpha=alpha)
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
