"""Small labeled data and quick settings for the protocols that train a classifier."""

from pathlib import Path
from typing import Any

from rich.console import Console

from imsvd.datasets import ShapesSource
from imsvd.encoder import load
from imsvd.evaluation.classification import ClassificationSettings, LabeledSplits, checked_splits
from imsvd.evaluation.classifier import Evaluation, evaluate_by_training

QUIET = Console(quiet=True)
FROZEN = ClassificationSettings(epochs=2, batch_size=32, head_lr=8, weight_decay=1e-3)
FREE = FROZEN.model_copy(update={"frozen": False, "backbone_lr": 0.5, "head_lr": 0.5})


def shapes(train: int = 96, test: int = 41) -> LabeledSplits:
    return checked_splits(
        "shapes", ShapesSource("train", count=train), ShapesSource("test", count=test)
    )


def evaluation(
    run: Path, settings: ClassificationSettings = FROZEN, splits: LabeledSplits | None = None
) -> Evaluation:
    return Evaluation("linear", load(run), splits or shapes(), settings)


def evaluate(trained: Path, out: Path, *arguments: Any) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    return evaluate_by_training(evaluation(trained, *arguments), out, "shapes", QUIET)
