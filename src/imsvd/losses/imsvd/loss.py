"""IMSVD: information-maximized soft variable discretization (https://arxiv.org/abs/2501.03469).

A softmax inside each variable of the embedding gives q. The loss makes two views of an image agree
(invariance), every variable use all its units (diagonal entropy), and every two variables together
use all combinations of their units (off-diagonal entropy). The variables then neither collapse nor
repeat each other.

| symbol | here (functions are in `kernel`) |
|---|---|
| q', q'' | `q1`, `q2`: `soft_discretize` of the two views' logits, `(batch, width)` |
| P^c, Eq. 10 | cross-joint matrix `(width, width)` of the global batch, never built as a whole |
| first term of Eq. 11 (TI) | `inner_product`, or `cross_entropy` (TIC) |
| diagonal cells of the second term (DE) | entropy of `diagonal_joint`, `(width,)` |
| off-diagonal blocks of the second term (OE) | `off_diagonal`, tile by tile |
| λ | `diagonal_weight`, `off_diagonal_weight` |

Eq. 11 scales both entropy sums by 1 / M² (`normalization="paper"`). The objective it is derived
from, and the code behind the published numbers, average instead: 1 / M over variables and
1 / (M (M - 1)) over ordered pairs (`normalization="averaged"`, the default).

`joint="within"` takes the entropies of pairs of variables as the paper's own objective has them
before it is simplified (Eq. 9 with r = 2): those of q'ᵀ q' and of q''ᵀ q'', averaged. Eq. 11 replaces
them by the cross-joint entropy of q'ᵀ q'' on the grounds that the views agree; where they do not,
the cross-joint entropy is large for that reason alone.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor

from imsvd.errors import InputError
from imsvd.information import Units, resolve_units
from imsvd.losses.base import Loss, LossOutput
from imsvd.losses.imsvd.bounds import IMSVDBounds, TermFactors, imsvd_bounds
from imsvd.losses.imsvd.kernel import LossShape, Pairs, fused_loss

Invariance = Literal["inner_product", "cross_entropy"]
Normalization = Literal["averaged", "paper"]
Joint = Literal["cross", "within"]


def term_scales(num_variables: int, normalization: Normalization) -> TermFactors:
    """Factors of the sums over samples, variables and pairs; a single variable has no pairs."""
    if normalization == "paper":
        return TermFactors(1.0, 1 / num_variables**2, 1 / num_variables**2)
    num_pairs = max(1, num_variables * (num_variables - 1))
    return TermFactors(1.0, 1 / num_variables, 1 / num_pairs)


class IMSVDLoss(Loss):
    """The cross-joint entropy loss of two views (Eq. 11) over the global batch.

    Beyond its inputs it holds about four times `(batch, width)` numbers and one tile, its gradients
    included.

    Args:
        units: units of all variables, or of each; the paper's models use 80.
        invariance: the similarity of the views, TI or TIC.
        invariance_weight: weight of the similarity.
        diagonal_weight: weight of the diagonal entropy.
        off_diagonal_weight: weight of the off-diagonal entropy. At 0 it is not computed and has no
            entry among the terms; the other terms are cheap and always reported.
        normalization: `"averaged"` as in the released code, or `"paper"`.
        joint: joint probabilities of the off-diagonal entropy, `"cross"` between the two views
            (Eq. 11) or `"within"` each of them (Eq. 9), with four matrix products instead of three.
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
        _check_choice("invariance", invariance, get_args(Invariance))
        _check_choice("normalization", normalization, get_args(Normalization))
        _check_choice("joint", joint, get_args(Joint))
        if tile_rows is not None and tile_rows < 1:
            raise InputError(f"tile_rows = {tile_rows}: choose at least 1, or None.")
        self.units = units if isinstance(units, int) else tuple(units)
        self.invariance: Invariance = invariance
        self.weights = TermFactors(invariance_weight, diagonal_weight, off_diagonal_weight)
        self.normalization: Normalization = normalization
        self.joint = joint
        self.tile_rows = tile_rows

    def forward(self, first: Tensor, second: Tensor) -> LossOutput:
        """Loss of two views' logits, `(batch, width)` each."""
        return self.of_views((first, second), ((0, 1),))

    def of_views(self, views: Sequence[Tensor], pairs: Pairs) -> LossOutput:
        """Mean loss of pairs of views; what is the same for several pairs is computed once.

        Args:
            views: logits, `(batch, width)` each.
            pairs: positions of the two views of every pair; every view belongs to one at least.
        """
        given = {view.shape for view in views}
        (shape,) = given if len(given) == 1 else (None,)
        if shape is None or len(shape) != 2 or not shape[0]:
            shapes = " and ".join(str(tuple(view.shape)) for view in views)
            raise InputError(f"IMSVDLoss needs equal (batch, width) embeddings, got {shapes}.")
        sizes = resolve_units(shape[-1], self.units)
        return fused_loss(
            views,
            pairs,
            LossShape(
                sizes,
                cross_entropy=self.invariance == "cross_entropy",
                scales=term_scales(len(sizes), self.normalization),
                weights=self.weights,
                within_views=self.joint == "within",
                tile_rows=self.tile_rows,
            ),
        )

    def bounds(self, batch_size: int, width: int) -> IMSVDBounds:
        """Reference values for a global batch: terms without weights, totals with them."""
        sizes = resolve_units(width, self.units)
        scales = term_scales(len(sizes), self.normalization)
        return imsvd_bounds(sizes, batch_size, scales, self.weights)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} = {value!r}: choose one of {choices}.")
