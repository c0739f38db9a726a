"""Pascal VOC 2007 classification with linear support vector machines on frozen features.

Trained on trainval, tested on test. An image that shows a class only in objects marked difficult
counts neither for nor against it, in training as in testing. See `svm` and `average_precision`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from imsvd.datasets.voc import ABSENT, DIFFICULT, PRESENT, VOCData, VOCSource
from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.evaluation.average_precision import (
    all_point_average_precision,
    eleven_point_average_precision,
)
from imsvd.evaluation.features import extract_features
from imsvd.evaluation.labeled import check_features, check_widths
from imsvd.evaluation.svm import (
    ClassScores,
    SVMSettings,
    classify,
    num_steps,
    require_scikit_learn,
)
from imsvd.progress import progress_bar

_DEFAULTS = SVMSettings()


class LabeledFeatures(NamedTuple):
    """Features (n, width) and the targets (n, classes) of the same images: 1, -1, or 0 difficult."""

    features: Tensor
    targets: Tensor


class VOC07Outcome(NamedTuple):
    """Metrics in percent, and what else is worth keeping."""

    metrics: dict[str, float]
    details: dict[str, Any]


def run_voc07(
    encoder: Encoder, data: VOCData, console: Console, settings: SVMSettings = _DEFAULTS
) -> VOC07Outcome:
    """Run the whole protocol on an encoder, showing progress on `console`."""
    require_scikit_learn()
    class_names = data.trainval.class_names
    # Before the images are read, which may take long; `voc07` looks again at what could be read.
    check_classes("trainval", data.trainval.targets, class_names, settings.folds)
    check_classes("test", data.test.targets, class_names, 1)
    train, skipped_train = _encode(encoder, data.trainval, console)
    test, skipped_test = _encode(encoder, data.test, console)
    with progress_bar(console) as bar:
        task = bar.add_task("support vector machines", total=num_steps(len(class_names), settings))
        outcome = voc07(train, test, class_names, settings, lambda: bar.advance(task))
    counts = {
        "train_images": len(train.features),
        "test_images": len(test.features),
        "skipped": skipped_train + skipped_test,
    }
    return VOC07Outcome(outcome.metrics, counts | outcome.details)


def voc07(
    train: LabeledFeatures,
    test: LabeledFeatures,
    class_names: tuple[str, ...],
    settings: SVMSettings = _DEFAULTS,
    advance: Callable[[], None] = lambda: None,
) -> VOC07Outcome:
    """Average precision in percent of every class and their means, "voc07_map" by VOC's 11 points.

    Args:
        train: what the machines are fitted and their costs chosen on.
        test: what they are judged by.
        class_names: names of the columns of the targets.
        settings: the protocol.
        advance: called `num_steps` times along the way.
    """
    check_features("training", train.features)
    check_features("test", test.features)
    check_widths(train.features, test.features)
    check_classes("trainval", train.targets, class_names, settings.folds)
    check_classes("test", test.targets, class_names, 1)
    targets = test.targets.numpy()
    found = classify(
        train.features.numpy(), train.targets.numpy(), test.features.numpy(), settings, advance
    )
    eleven, every = {}, {}
    for number, (name, result) in enumerate(zip(class_names, found, strict=True)):
        counted = targets[:, number] != DIFFICULT
        scores, positives = result.scores[counted], targets[counted, number] == PRESENT
        eleven[name] = 100 * eleven_point_average_precision(scores, positives)
        every[name] = 100 * all_point_average_precision(scores, positives)
    metrics = {
        "voc07_map": float(np.mean(list(eleven.values()))),
        "voc07_map_all_points": float(np.mean(list(every.values()))),
    }
    metrics |= {f"voc07/{name}": value for name, value in eleven.items()}
    return VOC07Outcome(metrics, _details(class_names, found, targets, settings))


def check_classes(split: str, targets: Tensor, class_names: tuple[str, ...], least: int) -> None:
    """Refuse classes without at least `least` images for and against them in targets (n, classes)."""
    for number, name in enumerate(class_names):
        for label, word in ((PRESENT, "with"), (ABSENT, "without")):
            count = int((targets[:, number] == label).sum())
            if count < least:
                raise InputError(
                    f"{split} has {count} images {word} the class {name!r}, and {least} are needed; "
                    "add some, or leave the class out."
                )


def _encode(encoder: Encoder, source: VOCSource, console: Console) -> tuple[LabeledFeatures, int]:
    """Features and targets of the readable images, and the number of the others."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    description = encoder.description
    with progress_bar(console) as bar:
        task = bar.add_task(f"features of {source.split}", total=len(source))
        found = extract_features(
            encoder.to(device).backbone,
            source,
            size=description.size,
            mean=description.mean,
            std=description.std,
            device=device,
            progress=lambda done, _: bar.update(task, completed=done),
        )
    readable = torch.ones(len(source), dtype=torch.bool)
    for bad in found.skipped:
        readable[bad.index] = False
    if found.skipped:
        console.print(
            f"[yellow]{len(found.skipped)} unreadable images of {source.split} were left out.[/yellow]"
        )
    return LabeledFeatures(found.features, source.targets[readable]), len(found.skipped)


def _details(
    class_names: tuple[str, ...],
    found: list[ClassScores],
    test_targets: np.ndarray[Any, np.dtype[np.int8]],
    settings: SVMSettings,
) -> dict[str, Any]:
    """Chance is the mean share of positives, which random scores reach."""
    counted = (test_targets != DIFFICULT).sum(axis=0)
    shares = (test_targets == PRESENT).sum(axis=0) / counted
    named = dict(zip(class_names, found, strict=True))
    return {
        "chance": 100 * float(shares.mean()),
        "costs": {name: result.cost for name, result in named.items()},
        "validation": {name: 100 * result.validation for name, result in named.items()},
        "not_converged": [name for name, result in named.items() if not result.converged],
        "settings": settings.model_dump(mode="json", exclude={"jobs"}),
    }
