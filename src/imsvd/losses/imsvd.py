"""IMSVD: information-maximized soft variable discretization (https://arxiv.org/abs/2501.03469).

A softmax inside each variable of the embedding gives q; the loss asks that two views of an image
agree (invariance), that every variable uses all its units (diagonal entropy), and that every two
variables together use all combinations of theirs (off-diagonal entropy), which leaves them neither
collapsed nor redundant.

| symbol | here |
|---|---|
| q', q'' | `q1`, `q2`: `soft_discretize` of the two views' logits, `(batch, width)` |
| P^c, Eq. 10 | `cross_joint(q1, q2)`, never built as a whole: see `joint_entropy.py` |
| first term of Eq. 11 (TI) | `invariance`, or `cross_entropy_invariance` (TIC) |
| diagonal cells of the second term (DE) | `diagonal_entropy` |
| off-diagonal blocks of the second term (OE) | `off_diagonal_entropy` |
| λ | `diagonal_weight`, `off_diagonal_weight` |

Eq. 11 scales both entropy sums by 1 / M² (`normalization="paper"`). The objective it is derived
from, and the code behind the published numbers, average instead: 1 / M over variables and
1 / (M (M - 1)) over ordered pairs (`normalization="averaged"`, the default).

`joint="within"` is not of the paper: the off-diagonal entropy of q'ᵀ q' and of q''ᵀ q'', averaged,
instead of that of q'ᵀ q''. The latter is large also where the views merely disagree.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.information import Units, entropy, resolve_units, variable_sums
from imsvd.losses.base import LossOutput
from imsvd.losses.bounds import IMSVDBounds, TermFactors, imsvd_bounds
from imsvd.losses.fused import LossShape, fused_loss
from imsvd.losses.joint_entropy import off_diagonal_entropy_sum

Invariance = Literal["inner_product", "cross_entropy"]
Normalization = Literal["averaged", "paper"]
Joint = Literal["cross", "within"]


def invariance(q1: Tensor, q2: Tensor, units: Units) -> Tensor:
    """TI, first term of Eq. 11: mean over samples and variables of -log ⟨q1(m, :), q2(m, :)⟩.

    Args:
        q1: `(batch, width)` probabilities of one view.
        q2: the same of the other view.
        units: units of all variables, or of each.

    Returns:
        A scalar over the samples given, finite even where two one-hot views disagree.
    """
    similarity = variable_sums(q1 * q2, units)
    return -similarity.clamp_min(torch.finfo(similarity.dtype).tiny).log().mean()


def cross_entropy_invariance(q1: Tensor, q2: Tensor, units: Units) -> Tensor:
    """TIC, the ablation below Eq. 11: mean over samples and variables of -Σ_d q1 log q2.

    Arguments and result as for `invariance`.
    """
    log_q2 = q2.clamp_min(torch.finfo(q2.dtype).tiny).log()
    return -variable_sums(q1 * log_q2, units).mean()


def diagonal_joint(q1: Tensor, q2: Tensor) -> Tensor:
    """Diagonal cells of P^c (Eq. 10) over the global batch: `(width,)`."""
    return distributed.mean_over_ranks_with_gradient((q1 * q2).mean(0))


def diagonal_entropy(
    q1: Tensor, q2: Tensor, units: Units, normalization: Normalization = "averaged"
) -> Tensor:
    """DE: scaled Σ P^c log P^c over the diagonal cells of the diagonal blocks (Eq. 11).

    Args:
        q1: `(batch, width)` probabilities of one view, this rank's samples.
        q2: the same of the other view.
        units: units of all variables, or of each.
        normalization: see the module's introduction.

    Returns:
        A scalar over the global batch.
    """
    scale = term_scales(len(resolve_units(q1.shape[-1], units)), normalization).diagonal_entropy
    return -scale * entropy(diagonal_joint(q1, q2))


def off_diagonal_entropy(
    q1: Tensor,
    q2: Tensor,
    units: Units,
    normalization: Normalization = "averaged",
    tile_rows: int | None = None,
) -> Tensor:
    """OE: scaled Σ P^c log P^c over all cells of the off-diagonal blocks (Eq. 11).

    Arguments and result as for `diagonal_entropy`; `tile_rows` as for `IMSVDLoss`.
    """
    scale = term_scales(len(resolve_units(q1.shape[-1], units)), normalization).off_diagonal_entropy
    return scale * off_diagonal_entropy_sum(q1, q2, units, tile_rows)


def term_scales(num_variables: int, normalization: Normalization) -> TermFactors:
    """What the sums of the terms are multiplied by; a single variable has no pairs."""
    if normalization == "paper":
        return TermFactors(1.0, 1 / num_variables**2, 1 / num_variables**2)
    num_pairs = max(1, num_variables * (num_variables - 1))
    return TermFactors(1.0, 1 / num_variables, 1 / num_pairs)


class IMSVDLoss(nn.Module):
    """The cross-joint entropy loss of two views (Eq. 11) over the global batch.

    Computed in float32 (or float64) whatever the autocast state. Beyond its inputs it holds about
    four times `(batch, width)` numbers and one tile, its gradients included.

    Args:
        units: units of all variables, or of each; the paper's models use 80.
        invariance: the similarity of the views, TI or TIC.
        invariance_weight: weight of the similarity.
        diagonal_weight: weight of the diagonal entropy.
        off_diagonal_weight: weight of the off-diagonal entropy. At 0 it is not computed and has no
            entry among the terms; the other terms are cheap and always reported.
        normalization: `"averaged"` as in the released code, or `"paper"`.
        joint: the joint probabilities of the off-diagonal entropy, `"cross"` of the two views as in
            the paper, or `"within"` each of them, at twice the cost.
        tile_rows: rows of the joint matrix held at a time; chosen from the width by default.
    """

    def __init__(
        self,
        units: Units,
        *,
        invariance: Invariance = "inner_product",
        invariance_weight: float = 1.0,
        diagonal_weight: float = 1.0,
        off_diagonal_weight: float = 1.0,
        normalization: Normalization = "averaged",
        joint: Joint = "cross",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__()
        if invariance not in get_args(Invariance):
            raise InputError(f"invariance = {invariance!r}: choose one of {get_args(Invariance)}.")
        if normalization not in get_args(Normalization):
            choices = get_args(Normalization)
            raise InputError(f"normalization = {normalization!r}: choose one of {choices}.")
        if joint not in get_args(Joint):
            raise InputError(f"joint = {joint!r}: choose one of {get_args(Joint)}.")
        if tile_rows is not None and tile_rows < 1:
            raise InputError(f"tile_rows = {tile_rows}: choose at least 1, or None.")
        self.units = units if isinstance(units, int) else tuple(units)
        self.invariance = invariance
        self.weights = TermFactors(invariance_weight, diagonal_weight, off_diagonal_weight)
        self.normalization: Normalization = normalization
        self.joint = joint
        self.tile_rows = tile_rows

    def forward(self, first: Tensor, second: Tensor) -> LossOutput:
        """Loss of two views' logits, `(batch, width)` each."""
        if first.shape != second.shape or first.ndim != 2 or not len(first):
            shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
            raise InputError(f"IMSVDLoss needs two equal (batch, width) embeddings, got {shapes}.")
        sizes = resolve_units(first.shape[-1], self.units)
        scales = term_scales(len(sizes), self.normalization)
        similarity = invariance if self.invariance == "inner_product" else cross_entropy_invariance
        within_views = self.joint == "within"
        shape = LossShape(sizes, similarity, scales, self.weights, within_views, self.tile_rows)
        return fused_loss(first, second, shape)

    def bounds(self, batch_size: int, width: int) -> IMSVDBounds:
        """Reference values for a global batch: terms without weights, totals with them."""
        sizes = resolve_units(width, self.units)
        scales = term_scales(len(sizes), self.normalization)
        return imsvd_bounds(sizes, batch_size, scales, self.weights)

    def extra_repr(self) -> str:
        """Settings shown by `print(loss)`."""
        weights = ", ".join(f"{weight:g}" for weight in self.weights)
        return (
            f"units={self.units}, weights=({weights}), normalization={self.normalization!r}, "
            f"joint={self.joint!r}"
        )
