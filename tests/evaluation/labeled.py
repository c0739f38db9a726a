"""Small labeled data and quick settings for the protocols that train a classifier."""

from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from imsvd.datasets import ShapesSource
from imsvd.encoder import load
from imsvd.evaluation.classification import ClassificationSettings, LabeledSplits, checked_splits
from imsvd.evaluation.classifier import Evaluation, evaluate_by_training

QUIET = Console(quiet=True)
FROZEN = ClassificationSettings(epochs=2, batch_size=32, head_lr=8, weight_decay=1e-3)
FREE = FROZEN.model_copy(update={"frozen": False, "backbone_lr": 0.5, "head_lr": 0.5})


class EightClasses(ShapesSource):
    """Drawn images with enough classes for a top-5 accuracy: shape and texture together."""

    def __init__(self, split: Literal["train", "test"], *, count: int) -> None:
        super().__init__(split, count=count)
        shape, texture = self.attributes["shape"], self.attributes["texture"]
        self.labels = 2 * shape + texture
        values = self.attribute_values
        self.classes = tuple(f"{a} {b}" for a in values["shape"] for b in values["texture"])


def shapes(train: int = 96, test: int = 41) -> LabeledSplits:
    return checked_splits(
        "shapes", EightClasses("train", count=train), EightClasses("test", count=test)
    )


def evaluation(
    run: Path, settings: ClassificationSettings = FROZEN, splits: LabeledSplits | None = None
) -> Evaluation:
    return Evaluation("linear", load(run), splits or shapes(), settings)


def evaluate(trained: Path, out: Path, *arguments: Any) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    return evaluate_by_training(evaluation(trained, *arguments), out, "shapes", QUIET)
