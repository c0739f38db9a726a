"""SimSiam as a method: one network, a predictor and a stop-gradient (arXiv 2011.10566)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from imsvd.losses.simsiam import SimSiamLoss
from imsvd.methods.base import MethodOutput, ProjectedMethod, mean_output, prediction_pairs
from imsvd.methods.settings import SMALL_LR, MethodSettings, Row, layer_widths
from imsvd.networks import projector


class SimSiamSettings(MethodSettings):
    """Settings of SimSiam; the defaults are the paper's for ImageNet."""

    name: Literal["simsiam"] = "simsiam"
    projector: tuple[int, ...] = layer_widths(2048, 2048, 2048)
    predictor: int = Field(512, ge=1, description="hidden width of the predictor, a bottleneck")

    admits_local_views: ClassVar = True
    labels: ClassVar = {"cosine": "cos"}
    smallest_sizes: ClassVar = {"projector": 8, "predictor": 8}
    recipes: ClassVar = {
        "small": Row(
            "chosen for short runs on a CPU",
            method={"projector": (512, 512, 512), "predictor": 128},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "solo-learn's run of 1,000 epochs (90.5 % linear), not repeated here",
            optimizer={"lr": 0.5, "weight_decay": 1e-5, "decay_all": False, "final_lr_ratio": 0},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the paper's (arXiv 2011.10566): SGD without warm-up, weight decay of everything",
            optimizer={"name": "sgd", "lr": 0.05, "weight_decay": 1e-4, "decay_all": True}
            | {"warmup_epochs": 0, "final_lr_ratio": 0},
            training={"batch_size": 512},
        ),
    }


class SimSiam(ProjectedMethod):
    """Every view predicts the embeddings of the other large views, which get no gradient."""

    def __init__(
        self, settings: SimSiamSettings, backbone: nn.Module, num_samples: int = 0
    ) -> None:
        del num_samples
        super().__init__(backbone, settings.projector, last="norm_without_affine")
        width = settings.projector[-1]
        self.predictor = projector((width, settings.predictor, width), last="bias")
        self.loss = SimSiamLoss()

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the mean loss of all predictions."""
        del samples
        features, embeddings = self.project(views)
        predictions = [self.predictor(embedding) for embedding in embeddings]
        pairs = prediction_pairs(len(views))
        outputs = [self.loss(predictions[view], embeddings[target]) for view, target in pairs]
        return mean_output(outputs, features, embeddings)

    def constant_lr_modules(self) -> Sequence[nn.Module]:
        """Return the predictor, which must keep up with embeddings that keep changing."""
        return (self.predictor,)

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the values of exact predictions and of unrelated ones."""
        del batch_size
        return {
            "ideal": {"cosine": 1.0, "total": -1.0},
            "unrelated": {"cosine": 0.0, "total": 0.0},
        }
