"""What the command line does, as functions: configure, pretrain, evaluate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from imsvd import codes
from imsvd.codes import Written
from imsvd.config import Config, override
from imsvd.datasets import ImageSource, open_source, small_image_size
from imsvd.datasets.opening import DATASET_NAMES
from imsvd.datasets.voc import open_voc
from imsvd.detection import open_coco, resolve_settings, run_coco
from imsvd.detection.settings import automatic_scale, protocol_name
from imsvd.distributed import rank
from imsvd.encoder import Encoder, load, open_encoder, results_folder
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
from imsvd.evaluation.svm import SVMSettings
from imsvd.evaluation.voc07 import run_voc07
from imsvd.export import export_encoder
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
    method = method or "imsvd"
    chosen = (
        recipe(recipe_name, method)
        if recipe_name
        else automatic_config(open_source(data, "train"), method)
    )
    values = chosen.model_dump(mode="json")
    values["data"]["source"] = _absolute(data)
    return override(Config.model_validate(values), settings)


def automatic_config(source: ImageSource, method: str = "imsvd") -> Config:
    """Choose a recipe by image size and hardware, and a batch that the number of images allows."""
    on_cpu = not torch.cuda.is_available()
    small = small_image_size(source) is not None
    if small:
        config = recipe("cifar10-cpu" if on_cpu else "cifar10", method)
    else:
        config = recipe("folder-cpu" if on_cpu else "imagenet", method)
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
    """Classify the test split of `data` by the nearest training images; append to results.jsonl.

    `run` may also be a backbone such as "timm:resnet50", see `open_encoder`.
    """
    split = split_features(open_encoder(run), data, console or Console(quiet=True))
    settings = usable_neighbours(
        KNNSettings(neighbours=tuple(neighbours)), len(split.train.features)
    )
    metrics = knn_metrics(split, settings)
    append_result(
        results_folder(run),
        "knn",
        metrics,
        data=str(data),
        details=_details(split, settings.model_dump(mode="json")),
    )
    return metrics


def evaluate_linear_probe(
    run: str | Path, data: str | Path, *, console: Console | None = None
) -> dict[str, float]:
    """Fit a linear classifier on cached features (quick, unaugmented); append to results.jsonl.

    `run` may also be a backbone such as "timm:resnet50", see `open_encoder`.
    """
    split = split_features(open_encoder(run), data, console or Console(quiet=True))
    metrics = linear_probe(
        split.train.features, _labels(split.train), split.test.features, _labels(split.test)
    )
    append_result(
        results_folder(run), "linear-probe", metrics, data=str(data), details=_details(split, {})
    )
    return metrics


def evaluate_voc07(
    run: str | Path,
    data: str | Path,
    *,
    jobs: int | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Classify Pascal VOC 2007 with a linear SVM per class; append to results.jsonl.

    Args:
        run: a run folder, or a backbone such as "timm:resnet50".
        data: the folder VOC's archives were unpacked in.
        jobs: processes; by default one for every processor.
        console: where to show progress.
    """
    opened = open_voc(data)
    metrics, details = run_voc07(
        open_encoder(run), opened, console or Console(quiet=True), SVMSettings(jobs=jobs)
    )
    append_result(results_folder(run), "voc07", metrics, data=str(data), details=details)
    return metrics


def evaluate_coco(
    run: str | Path,
    data: str | Path,
    *,
    scale: str | None = None,
    iterations: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, float]:
    """Train Mask R-CNN C4 on COCO, measure AP of boxes and masks; append to results.jsonl.

    Repeating an interrupted call goes on where it was.

    Args:
        run: a run folder, or a backbone such as "timm:resnet50".
        data: a folder in COCO's layout.
        scale: "full" (the paper's 1× schedule) or "small"; by default full where there is a GPU.
        iterations: instead of the scale's; warm-up and decay shrink with it.
        settings: overrides such as "lr=0.02".
        console: where to show progress.
    """
    chosen = resolve_settings(scale or automatic_scale(), iterations, settings)
    opened = open_coco(data)
    folder = results_folder(run)
    metrics, details = run_coco(
        open_encoder(run), opened, folder / "coco", chosen, console or Console(quiet=True)
    )
    if rank() == 0:
        append_result(folder, protocol_name(chosen), metrics, data=str(data), details=details)
    return metrics


def export(
    run: str | Path, format_name: str, out: str | Path, *, output_kind: str = "features"
) -> Path:
    """Write an encoder in the form another tool reads, checked by loading it there; return where.

    Args:
        run: a run folder, or a backbone such as "timm:resnet50".
        format_name: torchvision, timm, detectron2, safetensors or onnx.
        out: the file, or for timm the new folder.
        output_kind: what an ONNX graph gives: features, probabilities or codes.
    """
    return export_encoder(open_encoder(run), format_name, out, output_kind=output_kind)


def write_codes(
    run: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    split: str = "train",
    embedding: bool = False,
    console: Console | None = None,
) -> Written:
    """Write the code of every image of `data` to the Parquet file `out`.

    Args:
        run: a run folder.
        data: images; labels are not needed.
        out: the file; complete or not there.
        split: train (everything, where there is no test part), test or all.
        embedding: whether to write the features too.
        console: where to show progress.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    console = console or Console(quiet=True)
    with progress_bar(console) as bar:
        task = bar.add_task("codes", total=None)
        written = codes.write_codes(
            open_encoder(run).to(device),
            data,
            Path(out),
            run=str(run),
            split=split,
            embedding=embedding,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if written.skipped:
        console.print(f"[yellow]{written.skipped} unreadable images were left out.[/yellow]")
    return written


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
