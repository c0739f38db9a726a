"""IMSVD as a method: backbone, projector and the cross-joint entropy loss (arXiv 2501.03469)."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from imsvd.information import dead_units, one_hotness, resolve_units, soft_discretize
from imsvd.losses.imsvd import IMSVDLoss
from imsvd.methods.base import PairwiseMethod
from imsvd.methods.settings import CodeHead, MethodSettings, layer_widths


class IMSVDSettings(MethodSettings):
    """Settings of IMSVD; the defaults are the paper's for ImageNet."""

    name: Literal["imsvd"] = "imsvd"
    projector: tuple[int, ...] = layer_widths(8192, 8160)
    units: int | tuple[int, ...] = Field(
        80, description="units per variable (D_M), or one number per variable"
    )
    standardize: bool = Field(
        False,
        description="end the projector with a BatchNorm without scale and shift; the paper has none",
    )
    invariance: Literal["inner_product", "cross_entropy"] = Field(
        "inner_product", description="form of the invariance term: TI, or TIC of the ablation"
    )
    invariance_weight: float = Field(1.0, ge=0, description="weight of TI; 0 switches it off")
    diagonal_weight: float = Field(1.0, ge=0, description="weight of DE; 0 switches it off")
    off_diagonal_weight: float = Field(1.0, ge=0, description="weight of OE; 0 switches it off")
    normalization: Literal["averaged", "paper"] = Field(
        "averaged", description="averaged: DE/M and OE/(M(M−1)), as released; paper: both over M²"
    )
    joint: Literal["cross", "within"] = Field(
        "cross",
        description="joint probabilities of OE: across the views (Eq. 11), or within each (Eq. 9)",
    )

    admits_local_views: ClassVar = True
    labels: ClassVar = {
        "invariance": "TI",
        "diagonal_entropy": "DE",
        "off_diagonal_entropy": "OE",
        "share_above_0.9": ">0.9",
        "share_above_0.99": ">0.99",
        "dead_units": "dead",
        "batch_limit": "limit",
    }

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        resolve_units(self.projector[-1], self.units)
        return self

    @property
    def code_head(self) -> CodeHead:
        """The projector, whose outputs are the units of all variables."""
        units = resolve_units(self.projector[-1], self.units)
        return CodeHead(self.projector, self.standardize, units)

    def smallest(self) -> Self:
        """Return the form with two variables, which keep their units, and hidden layers of 8."""
        units = self.code_head.units[:2]
        hidden = [8] * (len(self.projector) - 1)
        kept = self.units if isinstance(self.units, int) else units
        return self.replace(projector=[*hidden, sum(units)], units=kept)


class IMSVD(PairwiseMethod):
    """Two views through one network, softly discretized and tied by information."""

    loss: IMSVDLoss

    def __init__(self, settings: IMSVDSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        last: Literal["norm_without_affine", "bare"] = (
            "norm_without_affine" if settings.standardize else "bare"
        )
        super().__init__(backbone, settings.projector, last)
        self.width = settings.projector[-1]
        self.units = settings.code_head.units
        self.loss = IMSVDLoss(
            settings.units,
            invariance=settings.invariance,
            invariance_weight=settings.invariance_weight,
            diagonal_weight=settings.diagonal_weight,
            off_diagonal_weight=settings.off_diagonal_weight,
            normalization=settings.normalization,
            joint=settings.joint,
        )

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the ideal, uniform and collapsed values and the limit of a batch."""
        bounds = self.loss.bounds(batch_size, self.width)
        return {name: dict(row._asdict()) for name, row in bounds._asdict().items()}

    def statistics(self, embedding: Tensor) -> dict[str, Tensor]:
        """Return how discrete the codes are and how evenly the units are used."""
        probabilities = soft_discretize(embedding, self.units)
        return {
            "share_above_0.9": one_hotness(probabilities, self.units, 0.9),
            "share_above_0.99": one_hotness(probabilities, self.units, 0.99),
            "marginals": probabilities.mean(dim=0),
        }

    def summarize(self, statistics: Mapping[str, Tensor]) -> dict[str, float]:
        """Replace the epoch's average marginals by the number of dead units."""
        return {
            "share_above_0.9": float(statistics["share_above_0.9"]),
            "share_above_0.99": float(statistics["share_above_0.99"]),
            "dead_units": float(dead_units(statistics["marginals"], self.units)),
        }
