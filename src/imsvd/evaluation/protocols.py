"""The evaluation protocols: one table, one entry, and a typed function for each.

`evaluate("knn", run, data)` and `evaluate_knn(run, data)` are the same call, which `imsvd evaluate knn`
makes too. Every protocol returns its metrics in percent and appends them to results.jsonl with the
settings used. Protocols that train can be interrupted: the same call resumes them from
RUN/evaluations/ or RUN/coco/.

`run`, `data` and `console` have the same meaning everywhere, see `evaluate`. Where there are `settings`,
they are overrides such as "head_lr=0.1" or "compute.devices=2"; `epochs` replaces the published number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from imsvd.config import ComputeSettings
from imsvd.datasets.named import open_places205
from imsvd.datasets.voc import open_voc
from imsvd.distributed import all_gather_rows, gather_lists, on_first_rank
from imsvd.encoder import Encoder, encoder_details, open_encoder, results_folder
from imsvd.engine.hardware import launch, require_single_process, worker_count
from imsvd.errors import InputError
from imsvd.evaluation.classification import (
    FINETUNE_SETTINGS,
    PLACES205_SETTINGS,
    ClassificationSettings,
    LabeledSplits,
    adapted,
    checked_splits,
    linear_settings,
    open_labeled,
    semi_settings,
    semi_splits,
)
from imsvd.evaluation.classifier import Evaluation, evaluate_by_training
from imsvd.evaluation.coco import DetectionSettings, open_coco, resolve_settings, run_coco
from imsvd.evaluation.coco.settings import automatic_scale, protocol_name
from imsvd.evaluation.features import FeatureSplits, chance, encode_split_shares, encode_splits
from imsvd.evaluation.knn import KNNSettings, knn_of_shares, usable_neighbors
from imsvd.evaluation.linear_probe import LinearProbeSettings, linear_probe
from imsvd.evaluation.results import append_result
from imsvd.evaluation.voc07 import SVMSettings, run_voc07
from imsvd.progress import progress_bar
from imsvd.settings import Settings, override_group, parse_settings

Metrics = dict[str, float]


def evaluate(
    protocol: str,
    run: str | Path,
    data: str | Path,
    *,
    console: Console | None = None,
    **options: Any,
) -> Metrics:
    """Evaluate an encoder with one of `PROTOCOLS`; append the metrics to results.jsonl and return them.

    Args:
        protocol: name of the protocol, such as "knn".
        run: run folder, `untrained:RUN`, or a backbone such as "timm:resnet50".
        data: images in the form the protocol needs, see `PROTOCOLS`.
        console: where to show progress; nowhere by default.
        options: keyword arguments of the protocol's function, such as `neighbors` of `evaluate_knn`.

    Raises:
        Interrupted: on Ctrl-C or SIGTERM, after saving; the same call resumes.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"there is no protocol {protocol!r}; choose {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[protocol].run(run, data, console=console, **options)


def evaluate_knn(
    run: str | Path,
    data: str | Path,
    *,
    neighbors: Sequence[int] = (20, 200),
    temperature: float = 0.07,
    distance: str = "cosine",
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Metrics:
    """Classify the test images of `data` by their nearest training images.

    With several processes, each encodes and holds its share of the images; all return the metrics
    that one process would.

    Args:
        run: run folder or backbone.
        data: labeled images with a test split.
        neighbors: values of k; those above the number of training images are dropped.
        temperature: scale on which a vote decays with distance.
        distance: "cosine" or "euclidean"; `evaluation.knn` defines the weights of both.
        settings: overrides such as "compute.devices=2".
        console: where to show progress.
    """
    wanted = parse_settings(
        KNNSettings,
        {"neighbors": tuple(neighbors), "temperature": temperature, "distance": distance},
    )
    compute = override_group(_Compute(), settings, owner="kNN", example="compute.devices=2").compute
    encoder = _open(run)
    fabric = launch(compute)
    if console is None or not fabric.is_global_zero:
        console = Console(quiet=True)
    workers = worker_count(compute, fabric)
    splits = encode_split_shares(encoder, data, fabric.device, console, workers)
    with progress_bar(console) as bar:
        task = bar.add_task("neighbors", total=len(splits.train.features))
        metrics = knn_of_shares(
            *splits, wanted, fabric.device, lambda done, _: bar.update(task, completed=done)
        )
    details = _describe_splits(splits, fabric.device)
    used = usable_neighbors(wanted, details["train_images"]).model_dump(mode="json")
    return _record(run, "knn", data, encoder, metrics, details | {"settings": used})


def evaluate_linear_probe(
    run: str | Path, data: str | Path, *, console: Console | None = None
) -> Metrics:
    """Fit a linear classifier on features extracted once, without augmentation.

    A quick check; the paper's protocol is `evaluate_linear`.
    """
    require_single_process("the linear probe")
    encoder = _open(run)
    splits = encode_splits(encoder, data, console or Console(quiet=True))
    train, test = splits
    assert train.labels is not None
    assert test.labels is not None
    settings = LinearProbeSettings()
    metrics = linear_probe(train.features, train.labels, test.features, test.labels, settings)
    details = _describe_splits(splits, torch.device("cpu"))
    details["settings"] = settings.model_dump(mode="json")
    return _record(run, "linear-probe", data, encoder, metrics, details)


def evaluate_linear(
    run: str | Path,
    data: str | Path,
    *,
    recipe: str | None = None,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Metrics:
    """Train a linear classifier on the frozen backbone and augmented images: the paper's protocol.

    `recipe` is "imagenet" or "cifar10"; by default it is chosen by the images' size.
    """
    splits = open_labeled(data)
    published = linear_settings(splits.train, recipe)
    chosen = adapted(published, splits.train, epochs, settings)
    return _train_classifier(run, "linear", data, splits, chosen, console)


def evaluate_finetune(
    run: str | Path,
    data: str | Path,
    *,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Metrics:
    """Train the backbone and a classifier on all labels."""
    splits = open_labeled(data)
    chosen = adapted(FINETUNE_SETTINGS, splits.train, epochs, settings)
    return _train_classifier(run, "finetune", data, splits, chosen, console)


def evaluate_semi(
    run: str | Path,
    data: str | Path,
    *,
    fraction: float,
    names: str | Path | None = None,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Metrics:
    """Train the backbone and a classifier on a fraction of the labels.

    `fraction`, such as 0.01, selects the settings and names the result. `names` is a file that lists
    the labeled images, one name per line; without it, they are drawn from every class, and "seed=1"
    among the settings draws others.
    """
    published = semi_settings(fraction)
    splits = open_labeled(data)
    seed = adapted(published, splits.train, epochs, settings).seed
    listed = None if names is None else Path(names).expanduser()
    part = semi_splits(splits, fraction, names=listed, seed=seed)
    chosen = adapted(published, part.train, epochs, settings)
    labels = "drawn" if listed is None else f"list {listed.name}"
    return _train_classifier(run, f"semi-{100 * fraction:g}", data, part, chosen, console, labels)


def evaluate_places205(
    run: str | Path,
    data: str | Path,
    *,
    stand_in: bool = False,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Metrics:
    """Train a linear classifier on the frozen backbone and the scenes of Places205.

    `data` is the folder with Places205's unpacked archives. As a stand-in, it may be any other labeled
    images; the result is then recorded as `places205-adapted`.
    """
    splits = open_labeled(data) if stand_in else checked_splits(data, *open_places205(data))
    chosen = adapted(PLACES205_SETTINGS, splits.train, epochs, settings)
    name = "places205-adapted" if stand_in else "places205"
    return _train_classifier(run, name, data, splits, chosen, console)


def evaluate_voc07(
    run: str | Path,
    data: str | Path,
    *,
    jobs: int | None = None,
    console: Console | None = None,
) -> Metrics:
    """Classify Pascal VOC 2007 with a linear SVM per class.

    `data` is the folder with VOC's unpacked archives. `jobs` processes fit the machines, by default one
    per processor.
    """
    require_single_process("voc07")
    opened = open_voc(data)
    encoder = _open(run)
    settings = SVMSettings(jobs=jobs)
    metrics, details = run_voc07(encoder, opened, console or Console(quiet=True), settings)
    return _record(run, "voc07", data, encoder, metrics, details)


def evaluate_coco(
    run: str | Path,
    data: str | Path,
    *,
    scale: str | None = None,
    iterations: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Metrics:
    """Train Mask R-CNN C4 on COCO and measure the AP of boxes and masks.

    `data` is a folder in COCO's layout. `scale` is "full" (the paper's 1× schedule) or "small"; by
    default full if there is a GPU. `iterations` replaces its number of iterations; warm-up and decay
    scale with it.
    """
    chosen = resolve_settings(scale or automatic_scale(), iterations, settings)
    opened = open_coco(data)
    encoder = _open(run)
    metrics, details = run_coco(
        encoder, opened, results_folder(run) / "coco", chosen, console or Console(quiet=True)
    )
    return _record(run, protocol_name(chosen), data, encoder, metrics, details)


class Protocol(NamedTuple):
    """One way to evaluate an encoder.

    Attributes:
        run: function that takes a run, data and options, and returns metrics in percent.
        trains: the part that the protocol trains.
        settings: class of its settings, recorded with every result.
        data: images that it needs.
        metrics: its metrics, the main one first; `semi` puts the percentage of labels into the name.
        page: its page in docs/evaluation/.
    """

    run: Callable[..., Metrics]
    trains: str
    settings: type[Settings]
    data: str
    metrics: tuple[str, ...]
    page: str


_LABELED = "labeled images with a training and a test split"

PROTOCOLS: Mapping[str, Protocol] = {
    "knn": Protocol(
        evaluate_knn, "nothing", KNNSettings, _LABELED, ("knn_20", "knn_200"), "knn.md"
    ),
    "linear-probe": Protocol(
        evaluate_linear_probe,
        "a linear classifier on cached features",
        LinearProbeSettings,
        _LABELED,
        ("linear_probe_top1", "linear_probe_top5"),
        "linear.md",
    ),
    "linear": Protocol(
        evaluate_linear,
        "a linear classifier on the frozen backbone",
        ClassificationSettings,
        _LABELED,
        ("linear_top1", "linear_top5", "linear_best_epoch_top1"),
        "linear.md",
    ),
    "finetune": Protocol(
        evaluate_finetune,
        "the backbone and a linear classifier",
        ClassificationSettings,
        _LABELED,
        ("finetune_top1", "finetune_top5", "finetune_best_epoch_top1"),
        "finetune.md",
    ),
    "semi": Protocol(
        evaluate_semi,
        "the backbone and a linear classifier, on a fraction of the labels",
        ClassificationSettings,
        _LABELED,
        ("semi_1_top1", "semi_1_top5", "semi_1_best_epoch_top1"),
        "semi.md",
    ),
    "places205": Protocol(
        evaluate_places205,
        "a linear classifier on the frozen backbone",
        ClassificationSettings,
        "Places205, unpacked",
        ("places205_top1", "places205_top5", "places205_best_epoch_top1"),
        "places205.md",
    ),
    "voc07": Protocol(
        evaluate_voc07,
        "a support vector machine per class on cached features",
        SVMSettings,
        "Pascal VOC 2007, unpacked",
        ("voc07_map", "voc07_map_all_points"),
        "voc07.md",
    ),
    "coco": Protocol(
        evaluate_coco,
        "Mask R-CNN C4 around the backbone",
        DetectionSettings,
        "boxes and masks in COCO's layout",
        ("coco_box_ap", "coco_mask_ap"),
        "coco.md",
    ),
}


class _Compute(Settings):
    """The only settings of kNN that `--set` can change; the others have options."""

    compute: ComputeSettings = ComputeSettings()


def _open(run: str | Path) -> Encoder:
    """Open the encoder, and check that its results can be written before any work is done."""
    encoder = open_encoder(run)
    results_folder(run)
    return encoder


def _train_classifier(
    run: str | Path,
    protocol: str,
    data: str | Path,
    splits: LabeledSplits,
    settings: ClassificationSettings,
    console: Console | None,
    labels: str = "",
) -> Metrics:
    evaluation = Evaluation(protocol, open_encoder(run), splits, settings, labels)
    return evaluate_by_training(
        evaluation, results_folder(run), str(data), console or Console(quiet=True)
    )


def _describe_splits(splits: FeatureSplits, device: torch.device) -> dict[str, Any]:
    """Count the images of all ranks, and compute the accuracy of the most frequent class."""
    train, test = splits
    assert test.labels is not None
    truth = all_gather_rows(test.labels.to(device)).cpu()
    counts = (len(train.features), len(train.skipped) + len(test.skipped))
    train_images, skipped = (sum(gather_lists([count])) for count in counts)
    return {
        "train_images": train_images,
        "test_images": len(truth),
        "skipped": skipped,
        "chance": chance(truth),
    }


def _record(
    run: str | Path,
    protocol: str,
    data: str | Path,
    encoder: Encoder,
    metrics: Metrics,
    details: Mapping[str, Any],
) -> Metrics:
    """Append a result to results.jsonl, once for all ranks, and return its metrics."""
    every = {**details, **encoder_details(encoder)}
    folder = results_folder(run)
    on_first_rank(lambda: append_result(folder, protocol, metrics, data=str(data), details=every))
    return metrics
