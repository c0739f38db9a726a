"""BYOL as a method: online network, predictor and momentum target (arXiv 2006.07733)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from imsvd.losses.byol import BYOLLoss
from imsvd.methods.base import MethodOutput, ProjectedMethod, mean_output, prediction_pairs
from imsvd.methods.memory import cosine_momentum, momentum_copy, update_momentum
from imsvd.methods.settings import CLIPPED_LARS, SMALL_LR, MethodSettings, Row, layer_widths
from imsvd.networks import projector


class BYOLSettings(MethodSettings):
    """Settings of BYOL; the defaults are the paper's for ImageNet."""

    name: Literal["byol"] = "byol"
    projector: tuple[int, ...] = layer_widths(4096, 256)
    predictor: int = Field(4096, ge=1, description="hidden width of the predictor")
    momentum: float = Field(
        0.99, ge=0, le=1, description="momentum of the target at the start; rises to 1 at the end"
    )

    admits_local_views: ClassVar = True
    labels: ClassVar = {"cosine": "cos"}
    smallest_sizes: ClassVar = {"projector": 8, "predictor": 8}
    recipes: ClassVar = {
        "small": Row(
            "chosen for short runs on a CPU",
            method={"projector": (1024, 128), "predictor": 512},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "solo-learn's run of 1,000 epochs (92.6 % linear), not repeated here",
            optimizer={**CLIPPED_LARS, "lr": 1.0, "weight_decay": 1e-5, "final_lr_ratio": 0},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the paper's for 100 epochs (arXiv 2006.07733)",
            optimizer={"lr": 0.45, "final_lr_ratio": 0},
            training={"batch_size": 4096},
        ),
    }


class BYOL(ProjectedMethod):
    """Every view predicts the target network's embedding of the other large views.

    The target network is a moving average of the trained one.
    """

    def __init__(self, settings: BYOLSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        del num_samples
        super().__init__(backbone, settings.projector)
        width = settings.projector[-1]
        self.momentum = settings.momentum
        self.predictor = projector((width, settings.predictor, width))
        self.target = momentum_copy(self.backbone, self.projector)
        self.loss = BYOLLoss()

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss of all predictions."""
        del samples
        features, embeddings = self.project(views)
        predictions = [self.predictor(embedding) for embedding in embeddings]
        with torch.no_grad():
            targets = [self.target(view) for view in views[:2]]
        return bootstrap(self.loss, predictions, targets, features)

    def after_step(self, progress: float) -> None:
        """Move the target toward the online network, ever more slowly."""
        online = nn.Sequential(self.backbone, self.projector)
        update_momentum(self.target, online, cosine_momentum(self.momentum, progress))

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the values of exact predictions and of unrelated ones."""
        del batch_size
        return bootstrap_bounds()


def bootstrap(
    loss: BYOLLoss,
    predictions: Sequence[Tensor],
    targets: Sequence[Tensor],
    features: Sequence[Tensor],
) -> MethodOutput:
    """Let every view predict the large ones; the two directions of a pair are added, as in the paper.

    Args:
        loss: of one direction.
        predictions: `(batch, width)` of every view.
        targets: `(batch, width)` of the two large views, by the momentum network.
        features: of the backbone, of every view.
    """
    pairs = prediction_pairs(len(predictions))
    outputs = [loss(predictions[view], targets[target]) for view, target in pairs]
    mean = mean_output(outputs, features, predictions)
    return mean._replace(loss=2 * mean.loss)


def bootstrap_bounds() -> dict[str, dict[str, float]]:
    """Return the values of exact predictions and of unrelated ones."""
    return {
        "ideal": {"cosine": 1.0, "total": 0.0},
        "unrelated": {"cosine": 0.0, "total": 4.0},
    }
