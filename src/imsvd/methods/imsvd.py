"""IMSVD as a method: backbone, projector and the cross-joint entropy loss (arXiv 2501.03469)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from imsvd.information import resolve_units
from imsvd.losses.base import LossOutput
from imsvd.losses.imsvd import IMSVDLoss
from imsvd.methods.base import (
    DiscreteMethod,
    MethodOutput,
    PairwiseMethod,
    mean_output,
    view_pairs,
)
from imsvd.methods.settings import DISCRETE_LABELS, CodeHead, MethodSettings, layer_widths
from imsvd.networks import feature_width, projector

COOLING = 0.9
"""Share of the training in which the temperature falls."""


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
    linear_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the loss that a linear head of the features has beside the projector; "
        "the paper has none",
    )
    final_temperature: float = Field(
        1.0,
        gt=0,
        le=1,
        description="temperature of the softmax that training ends with; it begins with the paper's, 1",
    )
    code_temperature: float = Field(
        1.0, gt=0, le=1, description="temperature of the softmax of the saved code"
    )

    published_form: ClassVar = (
        "method.standardize=false",
        "method.joint=cross",
        "method.off_diagonal_weight=1",
        "method.linear_share=0",
        "code=null",
        "optimizer.lr=0.003",
    )
    admits_local_views: ClassVar = True
    labels: ClassVar = {
        "invariance": "TI",
        "diagonal_entropy": "DE",
        "off_diagonal_entropy": "OE",
        "batch_limit": "limit",
        **DISCRETE_LABELS,
    }

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        resolve_units(self.projector[-1], self.units)
        if self.standardize and self.code_temperature < 1:
            raise ValueError("code_temperature needs a projector without standardize")
        return self

    @property
    def code_head(self) -> CodeHead:
        """The projector, whose outputs are the units of all variables."""
        units = resolve_units(self.projector[-1], self.units)
        return CodeHead(self.projector, self.standardize, units)

    def saved_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `state` with the code's temperature in the weights of the last layer."""
        if self.code_temperature == 1:
            return dict(state)
        last = [name for name in state if name.startswith("projector.")][-1]
        return {**state, last: state[last] / self.code_temperature}

    def smallest(self) -> Self:
        """Return the form with two variables, which keep their units, and hidden layers of 8."""
        units = self.code_head.units[:2]
        hidden = [8] * (len(self.projector) - 1)
        kept = self.units if isinstance(self.units, int) else units
        return self.replace(projector=[*hidden, sum(units)], units=kept)


class IMSVD(PairwiseMethod, DiscreteMethod):
    """Two views through one network, softly discretized and tied by information.

    Where `final_temperature` is below 1, the logits are divided by a temperature that falls
    geometrically. Entropies of soft probabilities flatter a code: undecided variables look even and
    independent. A low temperature makes them the entropies of the hard codes that people use.

    Where `linear_share` is above 0, a linear map of the features has the same loss as the projector.
    What the hidden layer could make of the features, they then have to show by themselves, which is
    how neighbors and linear classifiers read them.
    """

    loss: IMSVDLoss
    linear: nn.Sequential
    temperature: Tensor

    def __init__(self, settings: IMSVDSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        last: Literal["norm_without_affine", "bare"] = (
            "norm_without_affine" if settings.standardize else "bare"
        )
        super().__init__(backbone, settings.projector, last)
        self.width = settings.projector[-1]
        self.linear_share = settings.linear_share
        if self.linear_share:
            self.linear = projector((feature_width(backbone), self.width), last=last)
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
        self.final_temperature = settings.final_temperature
        if self.final_temperature < 1:
            self.register_buffer("temperature", torch.ones(()))

    def project(self, views: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the features and the logits of every view."""
        features, logits = super().project(views)
        return features, self._at_temperature(logits)

    def _at_temperature(self, logits: list[Tensor]) -> list[Tensor]:
        if self.final_temperature < 1:
            return [values / self.temperature for values in logits]
        return logits

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the mean loss of all pairs, with the joint entropies of a view computed once."""
        del samples
        features, embeddings = self.project(views)
        pairs = view_pairs(len(views))
        output = self.loss.of_views(embeddings, pairs)
        if self.linear_share:
            logits = self._at_temperature([self.linear(feature) for feature in features])
            output = _mixed(output, self.loss.of_views(logits, pairs), self.linear_share)
        return mean_output([output], features, embeddings)

    def after_step(self, progress: float) -> None:
        """Lower the temperature."""
        super().after_step(progress)
        if self.final_temperature < 1:
            self.temperature.fill_(self.final_temperature ** min(1.0, progress / COOLING))

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the ideal, uniform and collapsed values and the limit of a batch."""
        bounds = self.loss.bounds(batch_size, self.width)
        return {name: dict(row._asdict()) for name, row in bounds._asdict().items()}


def _mixed(first: LossOutput, second: LossOutput, share: float) -> LossOutput:
    """Return the mean of two losses and of their terms, in which the second has `share`."""
    terms = {
        name: torch.lerp(term, second.terms[name], share) for name, term in first.terms.items()
    }
    return LossOutput(torch.lerp(first.loss, second.loss, share), terms)
