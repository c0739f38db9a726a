"""What the command line does, as functions: configure, pretrain, evaluate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from imsvd.config import Config, method_settings, override
from imsvd.datasets import ImageSource, open_source, small_image_size
from imsvd.datasets.opening import DATASET_NAMES
from imsvd.encoder import Encoder, load
from imsvd.errors import InputError
from imsvd.evaluation import (
    Features,
    KNNSettings,
    append_result,
    chance,
    extract_features,
    knn,
    knn_attributes,
    linear_probe,
    usable_neighbours,
)
from imsvd.progress import progress_bar
from imsvd.recipes import recipe
from imsvd.runs import RunFolder
from imsvd.training import train

BATCHES_PER_EPOCH = 4
"""A batch chosen automatically leaves at least this many steps per epoch."""


def pretrain(
    data: str | Path,
    out: str | Path,
    *,
    recipe: str | None = None,
    method: str | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Encoder:
    """Train an encoder on the images of `data`, or resume the run in `out`, and return it.

    Args:
        data: a folder of images, or the name of a dataset such as "shapes" or "cifar10".
        out: the run folder.
        recipe: a name that `imsvd recipes` lists; chosen from the images and hardware if left out.
        method: a method to use instead of the recipe's.
        settings: overrides such as "optimizer.lr=0.3".
        console: where to show progress; `Console(quiet=True)` shows nothing.
    """
    console = console or Console()
    config = configure(data, recipe_name=recipe, method=method, settings=settings)
    train(config, RunFolder(out), console)
    return load(out)


def configure(
    data: str | Path,
    *,
    recipe_name: str | None = None,
    method: str | None = None,
    settings: Sequence[str] = (),
) -> Config:
    """Return the complete configuration for training on `data`."""
    chosen = recipe(recipe_name) if recipe_name else automatic_config(open_source(data, "train"))
    values = chosen.model_dump(mode="json")
    values["data"]["source"] = _absolute(data)
    if method is not None and method != chosen.method.name:
        values["method"] = method_settings(method).model_dump(mode="json")
    return override(Config.model_validate(values), settings)


def automatic_config(source: ImageSource) -> Config:
    """Choose a recipe by image size and hardware, and a batch that the number of images allows."""
    on_cpu = not torch.cuda.is_available()
    small = small_image_size(source) is not None
    if small:
        config = recipe("cifar10-cpu" if on_cpu else "cifar10")
    else:
        config = recipe("folder-cpu" if on_cpu else "imagenet")
    most = max(2, len(source) // BATCHES_PER_EPOCH)
    batch_size = min(config.training.batch_size, 2 ** (most.bit_length() - 1))
    return override(config, [f"training.batch_size={batch_size}"])


class Split(NamedTuple):
    """Features of the images that answer and of those that ask."""

    train: Features
    test: Features


def evaluate_knn(
    run: str | Path,
    data: str | Path,
    *,
    neighbours: Sequence[int] = (20, 200),
    console: Console | None = None,
) -> dict[str, float]:
    """Classify the test split of `data` by the nearest training images; append to results.jsonl."""
    split = split_features(load(run), data, console or Console(quiet=True))
    settings = usable_neighbours(
        KNNSettings(neighbours=tuple(neighbours)), len(split.train.features)
    )
    metrics = knn_metrics(split, settings)
    append_result(
        Path(run),
        "knn",
        metrics,
        data=str(data),
        details=_details(split, settings.model_dump(mode="json")),
    )
    return metrics


def evaluate_linear_probe(
    run: str | Path, data: str | Path, *, console: Console | None = None
) -> dict[str, float]:
    """Fit a linear classifier on cached features (quick, unaugmented); append to results.jsonl."""
    split = split_features(load(run), data, console or Console(quiet=True))
    metrics = linear_probe(
        split.train.features, _labels(split.train), split.test.features, _labels(split.test)
    )
    append_result(Path(run), "linear-probe", metrics, data=str(data), details=_details(split, {}))
    return metrics


def knn_metrics(split: Split, settings: KNNSettings) -> dict[str, float]:
    """Return kNN accuracies for the labels and, where known, for each attribute."""
    metrics = knn(
        split.train.features,
        _labels(split.train),
        split.test.features,
        _labels(split.test),
        settings,
    )
    if split.train.attributes:
        metrics |= knn_attributes(split.train, split.test, settings)
    return metrics


def split_features(encoder: Encoder, data: str | Path, console: Console) -> Split:
    """Extract the features of both splits of `data`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = encoder.to(device)
    extracted = []
    for name in ("train", "test"):
        source = open_source(data, name)
        if source.labels is None:
            raise InputError(
                f"{data} has no labels in its {name} split; use one sub-folder per class."
            )
        with progress_bar(console) as bar:
            task = bar.add_task(f"features of {name}", total=len(source))
            extracted.append(
                _extract(
                    encoder,
                    source,
                    device,
                    lambda done, _, bar=bar, task=task: bar.update(task, completed=done),
                )
            )
        if extracted[-1].skipped:
            console.print(
                f"[yellow]{len(extracted[-1].skipped)} unreadable images of {name} were left out.[/yellow]"
            )
    return Split(*extracted)


def _extract(
    encoder: Encoder, source: ImageSource, device: torch.device, progress: Any
) -> Features:
    description = encoder.description
    return extract_features(
        encoder.backbone,
        source,
        size=description.size,
        mean=description.mean,
        std=description.std,
        device=device,
        progress=progress,
    )


def _labels(features: Features) -> torch.Tensor:
    assert features.labels is not None
    return features.labels


def _details(split: Split, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "train_images": len(split.train.features),
        "test_images": len(split.test.features),
        "skipped": len(split.train.skipped) + len(split.test.skipped),
        "chance": chance(_labels(split.test)),
        "settings": settings,
    }


def _absolute(data: str | Path) -> str:
    """Return a folder's full path, so that a run can be resumed from anywhere; names stay as they are."""
    path = Path(data).expanduser()
    # A name wins over a folder so called, as it does where the data are opened.
    named = isinstance(data, str) and re.split("[:@]", data)[0] in DATASET_NAMES
    return str(path.resolve()) if path.exists() and not named else str(data)
