"""IMSVD as a method: backbone, projector and the cross-joint entropy loss (arXiv 2501.03469)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from imsvd.information import dead_units, one_hotness, resolve_units, soft_discretize
from imsvd.losses.imsvd import IMSVDLoss
from imsvd.methods.base import MethodSettings
from imsvd.methods.pairwise import PairwiseMethod
from imsvd.networks import feature_width, projector


class IMSVDSettings(MethodSettings):
    """Settings of IMSVD; the defaults are the paper's for ImageNet."""

    name: Literal["imsvd"] = "imsvd"
    projector: tuple[int, ...] = Field(
        (8192, 8160),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    units: int | tuple[int, ...] = Field(
        80, description="units per variable (D_M), or one number per variable"
    )
    standardize: bool = Field(
        False,
        description="whether a BatchNorm without scale and shift ends the projector; the paper has none",
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
        "cross", description="joint probabilities of OE: across the views (paper), or within each"
    )

    admits_local_views: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        resolve_units(self.projector[-1], self.units)
        return self

    @property
    def variable_units(self) -> tuple[int, ...]:
        """Units of each variable."""
        return resolve_units(self.projector[-1], self.units)


class IMSVD(PairwiseMethod):
    """Two views through one network, discretized softly and tied by information."""

    loss: IMSVDLoss

    def __init__(self, settings: IMSVDSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        self.width = settings.projector[-1]
        self.units = settings.variable_units
        self.backbone = backbone
        self.projector = projector(
            (feature_width(backbone), *settings.projector),
            last="norm_without_affine" if settings.standardize else "bare",
        )
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
        """Count the units that the epoch's average marginals show to be dead."""
        return {
            "share_above_0.9": float(statistics["share_above_0.9"]),
            "share_above_0.99": float(statistics["share_above_0.99"]),
            "dead_units": float(dead_units(statistics["marginals"], self.units)),
        }
