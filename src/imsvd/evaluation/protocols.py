"""The protocols that train a classifier, as functions: linear, fine-tune, semi-supervised, Places205.

Each opens its images, takes the published settings and hands both to the one loop. `run` is a run
folder or a backbone such as "timm:resnet50"; results are appended to results.jsonl and returned:
accuracies of the last epoch and, so labeled, of the best one. An evaluation that was interrupted
goes on where it was saved, in RUN/evaluations/.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from imsvd.config import ComputeSettings, Config
from imsvd.datasets import ImageSource, Subset, open_source, small_image_size
from imsvd.datasets.voc import open_voc
from imsvd.distributed import (
    all_gather_rows,
    gather_lists,
    on_first_rank,
    own_slice,
    rank,
    together,
    world_size,
)
from imsvd.encoder import Encoder, encoder_details, open_encoder, results_folder
from imsvd.errors import InputError
from imsvd.evaluation import (
    Features,
    KNNSettings,
    chance,
    extract_features,
    knn_of_shares,
    linear_probe,
    usable_neighbors,
)
from imsvd.evaluation.classification import (
    ClassificationSettings,
    LabeledSplits,
    adapted,
    open_labeled,
)
from imsvd.evaluation.classifier import Evaluation
from imsvd.evaluation.coco import open_coco, resolve_settings, run_coco
from imsvd.evaluation.coco.settings import automatic_scale, protocol_name
from imsvd.evaluation.finetune import FINETUNE_SETTINGS
from imsvd.evaluation.linear import linear_settings
from imsvd.evaluation.places205 import PLACES205_SETTINGS, places205_splits
from imsvd.evaluation.results import append_result
from imsvd.evaluation.semi import semi_settings, semi_splits
from imsvd.evaluation.supervised import evaluate_by_training
from imsvd.evaluation.svm import SVMSettings
from imsvd.evaluation.voc07 import run_voc07
from imsvd.progress import progress_bar
from imsvd.settings import Settings, override_group, parse_settings
from imsvd.training.hardware import launch, require_single_process, worker_count


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


BATCH_SIZE = 256
"""Images encoded at a time."""


class Split(NamedTuple):
    """Features of the images that answer and of those that ask."""

    train: Features
    test: Features


class _Computing(Settings):
    """What `--set` changes of an evaluation that has options for everything else."""

    compute: ComputeSettings = ComputeSettings()


def evaluate_knn(
    run: str | Path,
    data: str | Path,
    *,
    neighbors: Sequence[int] = (20, 200),
    temperature: float = 0.07,
    distance: str = "cosine",
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, float]:
    """Classify the test split of `data` by the nearest training images; append to results.jsonl.

    Under torchrun, or with several devices, every process encodes and holds its share of the
    images, and all return what one process would.

    Args:
        run: a run folder, or a backbone such as "timm:resnet50", see `open_encoder`.
        data: labeled images with a test split.
        neighbors: the values of k; those beyond the number of training images are left out.
        temperature: how fast a neighbor's vote falls with its distance.
        distance: "cosine" or "euclidean"; the weights are in `evaluation.knn`.
        settings: overrides such as "compute.devices=2".
        console: where to show progress.
    """
    wanted = parse_settings(
        KNNSettings,
        {"neighbors": tuple(neighbors), "temperature": temperature, "distance": distance},
    )
    computing = override_group(_Computing(), settings, owner="kNN", example="compute.devices=2")
    encoder, folder = open_encoder(run), results_folder(run)
    fabric = launch(Config(compute=computing.compute))
    if console is None or not fabric.is_global_zero:
        console = Console(quiet=True)
    workers = worker_count(Config(compute=computing.compute), fabric)
    split = shares_of_features(encoder, data, fabric.device, console, workers)
    with progress_bar(console) as bar:
        task = bar.add_task("neighbors", total=len(split.train.features))
        metrics = knn_of_shares(
            *split, wanted, fabric.device, lambda done, _: bar.update(task, completed=done)
        )
    details = _details_of_shares(split, wanted, fabric.device) | encoder_details(encoder)
    on_first_rank(lambda: append_result(folder, "knn", metrics, data=str(data), details=details))
    return metrics


def evaluate_linear_probe(
    run: str | Path, data: str | Path, *, console: Console | None = None
) -> dict[str, float]:
    """Fit a linear classifier on cached features (quick, unaugmented); append to results.jsonl.

    `run` may also be a backbone such as "timm:resnet50", see `open_encoder`.
    """
    require_single_process("the linear probe")
    encoder, folder = open_encoder(run), results_folder(run)
    split = split_features(encoder, data, console or Console(quiet=True))
    metrics = linear_probe(
        split.train.features, _labels(split.train), split.test.features, _labels(split.test)
    )
    details = _details(split, {}) | encoder_details(encoder)
    append_result(folder, "linear-probe", metrics, data=str(data), details=details)
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
    require_single_process("voc07")
    opened = open_voc(data)
    encoder, folder = open_encoder(run), results_folder(run)
    metrics, details = run_voc07(
        encoder, opened, console or Console(quiet=True), SVMSettings(jobs=jobs)
    )
    details |= encoder_details(encoder)
    append_result(folder, "voc07", metrics, data=str(data), details=details)
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
    encoder, folder = open_encoder(run), results_folder(run)
    metrics, details = run_coco(
        encoder, opened, folder / "coco", chosen, console or Console(quiet=True)
    )
    details |= encoder_details(encoder)
    if rank() == 0:
        append_result(folder, protocol_name(chosen), metrics, data=str(data), details=details)
    return metrics


def split_features(encoder: Encoder, data: str | Path, console: Console) -> Split:
    """Extract the features of both splits of `data`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = encoder.to(device)
    extracted = []
    for name in ("train", "test"):
        source = _labeled_source(data, name)
        extracted.append(_extract(encoder, source, name, device, console))
        _say_skipped(len(extracted[-1].skipped), name, console)
    return Split(*extracted)


def shares_of_features(
    encoder: Encoder, data: str | Path, device: torch.device, console: Console, workers: int = 0
) -> Split:
    """Extract the features of this rank's share of both splits of `data`; every rank must call this.

    Shares are runs of whole batches: each batch is computed as it would be by a single process.
    `workers` processes read images that are not small; 0 reads them in this one.
    """
    encoder = encoder.to(device)
    extracted = []
    for name in ("train", "test"):
        source = _labeled_source(data, name)
        share = _own_batches(source)
        readers = 0 if small_image_size(source) is not None else workers
        extract = functools.partial(_extract, encoder, share, name, device, console, readers)
        part = together(extract if len(share) else lambda: None)
        empty = torch.empty(0, encoder.num_features)
        extracted.append(part or Features(empty, share.labels, share.attributes))
        _say_skipped(_over_ranks(len(extracted[-1].skipped)), name, console)
    return Split(*extracted)


def _labeled_source(data: str | Path, name: str) -> ImageSource:
    source = open_source(data, "train" if name == "train" else "test")
    if source.labels is None:
        raise InputError(f"{data} has no labels in its {name} split; use one sub-folder per class.")
    return source


def _own_batches(source: ImageSource) -> ImageSource:
    if world_size() == 1:
        return source
    own = own_slice(math.ceil(len(source) / BATCH_SIZE))
    rows = range(own.start * BATCH_SIZE, min(own.stop * BATCH_SIZE, len(source)))
    return Subset(source, rows)


def _over_ranks(count: int) -> int:
    return sum(gather_lists([count]))


def _say_skipped(count: int, name: str, console: Console) -> None:
    if count:
        console.print(f"[yellow]{count} unreadable images of {name} were left out.[/yellow]")


def _extract(
    encoder: Encoder,
    source: ImageSource,
    name: str,
    device: torch.device,
    console: Console,
    workers: int = 0,
) -> Features:
    description = encoder.description
    with progress_bar(console) as bar:
        task = bar.add_task(f"features of {name}", total=len(source))
        return extract_features(
            encoder.backbone,
            source,
            size=description.size,
            mean=description.mean,
            std=description.std,
            device=device,
            batch_size=BATCH_SIZE,
            workers=workers,
            progress=lambda done, _: bar.update(task, completed=done),
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


def _details_of_shares(split: Split, settings: KNNSettings, device: torch.device) -> dict[str, Any]:
    train_images = _over_ranks(len(split.train.features))
    truth = all_gather_rows(_labels(split.test).to(device)).cpu()
    return {
        "train_images": train_images,
        "test_images": len(truth),
        "skipped": _over_ranks(len(split.train.skipped) + len(split.test.skipped)),
        "chance": chance(truth),
        "settings": usable_neighbors(settings, train_images).model_dump(mode="json"),
    }
