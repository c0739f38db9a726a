"""SEM as a method: simplicial embeddings within BYOL (arXiv 2204.00616).

The paper puts simplicial embeddings between the encoder and the projector of any method and studies
them with BYOL above all, whose form and loss this is. The features become L logits of V units each, a
softmax turns each group into a point of a simplex, and BYOL's projector and predictor see nothing
else. The loss is BYOL's.

| symbol | here |
|---|---|
| L, V | `variables`, `units` |
| z | `embedder`: a Linear without bias and a BatchNorm, as in the authors' code |
| τ | `temperature`; the momentum network may have another |
| ẑ, Eq. 1 | `Simplices`: the softmax of each group of z / τ, concatenated |

An encoder keeps the embedder, so that the simplices are its discrete variables as IMSVD's are. Those of
the published sizes are too many for that: recipes then train a code head beside SEM, as for methods
without variables.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from imsvd.information import soft_discretize
from imsvd.losses.byol import BYOLLoss
from imsvd.methods.base import DiscreteMethod, MethodOutput
from imsvd.methods.byol import bootstrap, bootstrap_bounds
from imsvd.methods.memory import cosine_momentum, momentum_copy, update_momentum
from imsvd.methods.settings import (
    CLIPPED_LARS,
    DISCRETE_LABELS,
    SMALL_LR,
    CodeHead,
    MethodSettings,
    Row,
    layer_widths,
)
from imsvd.networks import feature_width, projector

EMBEDDER, KEPT = "embedder.", "projector."
"""Prefixes of the embedder's weights in the method and in an encoder."""
EPSILON = nn.BatchNorm1d(1).eps
"""What every BatchNorm adds to a variance."""
LARGEST_CODE = 16_384
"""Most units that are a run's code; measures of pairs of units take 2 GB at this number."""


class SEMSettings(MethodSettings):
    """Settings of SEM; the defaults are those of the authors' script for ImageNet."""

    name: Literal["sem"] = "sem"
    variables: int = Field(4500, ge=1, description="L, number of simplices")
    units: int = Field(21, ge=2, description="V, units of each simplex")
    temperature: float = Field(0.872, gt=0, description="τ of the softmax in the trained network")
    target_temperature: float = Field(
        0.159, gt=0, description="τ of the softmax in the momentum network"
    )
    projector: tuple[int, ...] = layer_widths(
        4096, 256, description="widths of the projector's layers, which read the simplices"
    )
    predictor: int = Field(4096, ge=1, description="hidden width of the predictor")
    momentum: float = Field(
        0.99, ge=0, le=1, description="momentum of the target at the start; rises to 1 at the end"
    )

    admits_local_views: ClassVar = True
    labels: ClassVar = {"cosine": "cos", **DISCRETE_LABELS}
    smallest_sizes: ClassVar = {"variables": 2, "units": 4, "projector": 8, "predictor": 8}
    recipes: ClassVar = {
        "small": Row(
            "BYOL's with as many units as IMSVD has; temperatures of the authors' CIFAR script",
            method={"variables": 128, "units": 8, "temperature": 1.0, "target_temperature": 1.0}
            | {"projector": (1024, 128), "predictor": 512},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "the authors' script for CIFAR-100 and ResNet-18, 1,000 epochs",
            method={"variables": 5000, "units": 13, "temperature": 1.0, "target_temperature": 1.0},
            optimizer={**CLIPPED_LARS, "lr": 1.0, "weight_decay": 1e-5, "final_lr_ratio": 0},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the authors' script for 800 epochs; its rate is BYOL's for 100",
            optimizer={"lr": 0.45, "final_lr_ratio": 0},
            training={"batch_size": 4096},
        ),
    }

    @property
    def head_widths(self) -> tuple[int, ...]:
        """Widths of the embedder and the projector."""
        return (self.variables * self.units, *self.projector)

    @property
    def code_head(self) -> CodeHead:
        """The embedder, whose outputs are the units of all simplices; none if they are too many."""
        width = self.variables * self.units
        if width > LARGEST_CODE:
            return CodeHead()
        return CodeHead((width,), standardize=True, units=(self.units,) * self.variables)

    def saved_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `state` with the embedder in the form of an encoder's projector, and no other head.

        Scale and shift of the BatchNorm and the temperature become part of the weights and the mean, so that
        a BatchNorm without them gives z / τ.
        """
        scale, shift, mean, variance = (
            state[f"{EMBEDDER}1.{name}"]
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        deviation = (variance + EPSILON).sqrt()
        kept = {name: value for name, value in state.items() if not name.startswith(KEPT)}
        return kept | {
            f"{KEPT}0.weight": state[f"{EMBEDDER}0.weight"] * scale[:, None] / self.temperature,
            f"{KEPT}1.running_mean": (scale * mean - shift * deviation) / self.temperature,
            f"{KEPT}1.running_var": variance,
            f"{KEPT}1.num_batches_tracked": state[f"{EMBEDDER}1.num_batches_tracked"],
        }


class Simplices(nn.Module):
    """Softmax of every group of `(batch, variables * units)` logits over a temperature (Eq. 1)."""

    def __init__(self, units: int, temperature: float) -> None:
        super().__init__()
        self.units, self.temperature = units, temperature

    def forward(self, logits: Tensor) -> Tensor:
        """Return the points of all simplices, concatenated, in float32 at least."""
        return soft_discretize(logits / self.temperature, self.units)


class SEM(DiscreteMethod):
    """BYOL whose projector sees the features through simplices."""

    def __init__(self, settings: SEMSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        self.units = (settings.units,) * settings.variables
        self.momentum = settings.momentum
        width, *_, outputs = settings.head_widths
        self.backbone = backbone
        self.embedder = projector((feature_width(backbone), width), last="norm")
        self.simplices = Simplices(settings.units, settings.temperature)
        self.projector = projector((width, *settings.projector))
        self.predictor = projector((outputs, settings.predictor, outputs))
        target_simplices = Simplices(settings.units, settings.target_temperature)
        self.target = momentum_copy(backbone, self.embedder, target_simplices, self.projector)
        self.loss = BYOLLoss()

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute BYOL's loss; the embedding is z / τ, whose softmax is the simplices."""
        del samples
        features = [self.backbone(view) for view in views]
        logits = [self.embedder(feature) for feature in features]
        embeddings = [self.projector(self.simplices(view)) for view in logits]
        predictions = [self.predictor(embedding) for embedding in embeddings]
        with torch.no_grad():
            targets = [self.target(view) for view in views[:2]]
        output = bootstrap(self.loss, predictions, targets, features)
        return output._replace(embedding=logits[0].detach() / self.simplices.temperature)

    def after_step(self, progress: float) -> None:
        """Move the target toward the online network, ever more slowly."""
        online = nn.Sequential(self.backbone, self.embedder, self.projector)
        update_momentum(self.target, online, cosine_momentum(self.momentum, progress))

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the values of exact predictions and of unrelated ones."""
        del batch_size
        return bootstrap_bounds()
