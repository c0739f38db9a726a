"""The protocols that train a classifier, as functions: linear, fine-tune, semi-supervised, Places205.

Each opens its images, takes the published settings and hands both to the one loop. `run` is a run
folder or a backbone such as "timm:resnet50"; results are appended to results.jsonl and returned:
accuracies of the last epoch and, so labeled, of the best one. An evaluation that was interrupted
goes on where it was saved, in RUN/evaluations/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from imsvd.encoder import open_encoder, results_folder
from imsvd.evaluation.classification import (
    ClassificationSettings,
    LabeledSplits,
    adapted,
    open_labeled,
)
from imsvd.evaluation.finetune import FINETUNE_SETTINGS
from imsvd.evaluation.linear import linear_settings
from imsvd.evaluation.places205 import PLACES205_SETTINGS, places205_splits
from imsvd.evaluation.semi import semi_settings, semi_splits
from imsvd.training.evaluation import Evaluation
from imsvd.training.supervised import evaluate_by_training


def evaluate_linear(
    run: str | Path,
    data: str | Path,
    *,
    recipe: str | None = None,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, float]:
    """Train a linear classifier on the frozen backbone, on augmented images: the paper's protocol.

    Args:
        run: whose encoder.
        data: labeled images with a test split.
        recipe: "imagenet" or "cifar10"; by default chosen from the size of the images.
        epochs: another number of epochs than the published one.
        settings: overrides such as "head_lr=0.1" or "compute.devices=2".
        console: where to show progress.
    """
    splits = open_labeled(data)
    published = linear_settings(splits.train, recipe)
    chosen = adapted(published, splits.train, epochs, settings)
    return _evaluate(run, "linear", data, splits, chosen, console)


def evaluate_finetune(
    run: str | Path,
    data: str | Path,
    *,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, float]:
    """Train the backbone and a classifier on all labels; arguments as for `evaluate_linear`."""
    splits = open_labeled(data)
    chosen = adapted(FINETUNE_SETTINGS, splits.train, epochs, settings)
    return _evaluate(run, "finetune", data, splits, chosen, console)


def evaluate_semi(
    run: str | Path,
    data: str | Path,
    *,
    fraction: float,
    names: str | Path | None = None,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, float]:
    """Train the backbone and a classifier on the labels of few images.

    Args:
        run: whose encoder.
        data: labeled images with a test split.
        fraction: the share of labels, such as 0.01; it chooses the settings and names the result.
        names: a file that lists the images whose labels are used, one name a line; by default
            they are drawn, class by class, and "seed=1" among the settings draws others.
        epochs: another number of epochs than the published one.
        settings: overrides such as "backbone_lr=0.02".
        console: where to show progress.
    """
    published = semi_settings(fraction)
    splits = open_labeled(data)
    seed = adapted(published, splits.train, epochs, settings).seed
    listed = None if names is None else Path(names).expanduser()
    part = semi_splits(splits, fraction, names=listed, seed=seed)
    chosen = adapted(published, part.train, epochs, settings)
    chosen_by = "drawn" if listed is None else f"list {listed.name}"
    return _evaluate(run, f"semi-{100 * fraction:g}", data, part, chosen, console, chosen_by)


def evaluate_places205(
    run: str | Path,
    data: str | Path,
    *,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, float]:
    """Train a linear classifier on the frozen backbone, on Places205's scenes.

    Args:
        run: whose encoder.
        data: the folder that Places205's archives were unpacked in.
        epochs: another number of epochs than the paper's.
        settings: overrides such as "head_lr=0.02".
        console: where to show progress.
    """
    splits = places205_splits(data)
    chosen = adapted(PLACES205_SETTINGS, splits.train, epochs, settings)
    return _evaluate(run, "places205", data, splits, chosen, console)


def _evaluate(
    run: str | Path,
    protocol: str,
    data: str | Path,
    splits: LabeledSplits,
    settings: ClassificationSettings,
    console: Console | None,
    labels: str = "",
) -> dict[str, float]:
    evaluation = Evaluation(protocol, open_encoder(run), splits, settings, labels)
    return evaluate_by_training(
        evaluation, results_folder(run), str(data), console or Console(quiet=True)
    )
