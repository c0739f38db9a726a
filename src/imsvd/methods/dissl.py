"""DISSL as a method: a backbone, a teacher and a linear student (arXiv 2209.06235)."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from imsvd.losses.dissl import DISSLLoss
from imsvd.methods.base import Method, MethodOutput, large_views
from imsvd.methods.settings import SMALL_LR, MethodSettings, Row, layer_widths
from imsvd.networks import feature_width, projector


class DISSLSettings(MethodSettings):
    """Settings of DISSL; the defaults are the paper's for ImageNet."""

    name: Literal["dissl"] = "dissl"
    teacher: tuple[int, ...] = layer_widths(
        2048, 512, description="hidden widths of the teacher; none makes it linear", min_length=0
    )
    classes: int = Field(16384, ge=2, description="C, classes to which images are assigned")
    marginal_weight: float = Field(2.3, ge=0, description="λ, weight of using classes evenly")
    invariance_weight: float = Field(0.8, ge=0, description="β, weight of the teacher's agreement")
    teacher_temperature: float = Field(0.5, gt=0, description="divisor of the teacher's logits")
    student_temperature: float = Field(1.0, gt=0, description="divisor of the student's logits")

    admits_local_views: ClassVar = True
    labels: ClassVar = {
        "distillation": "dist",
        "marginal_entropy": "H(t)",
        "invariance": "TI",
        "batch_limit": "limit",
    }
    smallest_sizes: ClassVar = {"teacher": 8, "classes": 8}
    recipes: ClassVar = {
        "small": Row(
            "chosen by experience, not searched",
            method={"teacher": (512, 256), "classes": 512},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "the authors' minimal example (STL-10, ResNet-18, Adam) with fewer classes",
            method={"classes": 4096},
            optimizer={"name": "adamw", "lr": 2e-3, "scale_lr": False}
            | {"weight_decay": 1e-6, "decay_all": False},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the authors' heads, weights and batch; their optimizer is not known, so IMSVD's",
            training={"batch_size": 2560},
        ),
    }

    @property
    def head_widths(self) -> tuple[int, ...]:
        """Widths of the teacher, which ends in the classes."""
        return (*self.teacher, self.classes)


class DISSL(Method):
    """Views through one network; the teacher reads the two large ones, the student all of them."""

    def __init__(self, settings: DISSLSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        del num_samples
        self.classes = settings.classes
        self.backbone = backbone
        width = feature_width(backbone)
        self.teacher = projector((width, *settings.teacher, settings.classes), last="bias")
        # Linear, so that a linear probe can decode whatever the student can.
        self.student = nn.Linear(width, settings.classes)
        self.loss = DISSLLoss(
            settings.marginal_weight,
            settings.invariance_weight,
            settings.teacher_temperature,
            settings.student_temperature,
        )

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss of the teacher's and the student's logits."""
        del samples
        features = [self.backbone(view) for view in views]
        teachers = [self.teacher(feature) for feature in features[:2]]
        students = [self.student(feature) for feature in features]
        loss, terms = self.loss(teachers, students)
        return MethodOutput(loss, terms, large_views(features), teachers[0].detach())

    def bounds(self, batch_size: int) -> dict[str, dict[str, float]]:
        """Return the terms of certain and even, undecided, and equal assignments.

        The marginal entropy of a batch of N certain assignments is at most ln N.
        """
        log_classes = math.log(self.classes)
        return {
            "ideal": self._values(0.0, log_classes),
            "batch_limit": self._values(0.0, min(log_classes, math.log(batch_size))),
            "uniform": self._values(log_classes, log_classes),
            "collapsed": self._values(0.0, 0.0),
        }

    def _values(self, uncertainty: float, marginal_entropy: float) -> dict[str, float]:
        total = (1 + self.loss.invariance_weight) * uncertainty
        return {
            "distillation": uncertainty,
            "marginal_entropy": marginal_entropy,
            "invariance": uncertainty,
            "total": total - self.loss.marginal_weight * marginal_entropy,
        }
