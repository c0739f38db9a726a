"""`imsvd evaluate …`: one command per protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from imsvd.cli.app import Spec, Splits, argument, console, evaluate, option

Epochs = Annotated[int | None, option("N", "Epochs to train. Default: as published.", "--epochs")]
Settings = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Change a setting of the protocol, such as head_lr=0.1 or compute.devices=2; repeatable.",
        "--set",
    ),
]


def _evaluate(protocol: str, run: str, data: str | Path, **options: Any) -> None:
    """Run a protocol and print its metrics, once for all processes."""
    from imsvd.distributed import rank  # noqa: PLC0415
    from imsvd.encoder import results_folder  # noqa: PLC0415
    from imsvd.evaluation import protocols  # noqa: PLC0415

    metrics = protocols.evaluate(protocol, run, data, console=console, **options)
    if rank() != 0:
        return
    table = Table("metric", "%")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.2f}")
    console.print(table)
    # A backbone such as timm:resnet50 has no run folder to look in.
    if (folder := results_folder(run)) != Path(run):
        console.print(f"Recorded in {folder / 'results.jsonl'}", highlight=False, soft_wrap=True)


@evaluate.command("knn")
def evaluate_knn(
    run: Spec,
    data: Splits,
    k: Annotated[
        list[int] | None,
        option("N", "Number of neighbors; repeat for several. Default: 20 and 200."),
    ] = None,
    temperature: Annotated[
        float, option("T", "Scale of the voting weights, exp(cosine / temperature).")
    ] = 0.07,
    distance: Annotated[
        str,
        option(
            "NAME",
            "cosine or euclidean; euclidean weights are exp(-d²/2/temperature), with d in units "
            "of the features' root mean square length.",
        ),
    ] = "cosine",
    settings: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "Change a hardware setting, such as compute.devices=2; repeatable.",
            "--set",
        ),
    ] = None,
) -> None:
    """Classify test images by weighted votes of their nearest training images."""
    _evaluate(
        "knn",
        run,
        data,
        neighbors=k or (20, 200),
        temperature=temperature,
        distance=distance,
        settings=settings or [],
    )


@evaluate.command("linear-probe")
def evaluate_linear_probe(run: Spec, data: Splits) -> None:
    """Fit a linear classifier on cached features: a quick substitute for `linear`."""
    _evaluate("linear-probe", run, data)


@evaluate.command("linear")
def evaluate_linear(
    run: Spec,
    data: Splits,
    recipe: Annotated[
        str | None,
        option("NAME", "imagenet or cifar10. Default: chosen by the size of the images."),
    ] = None,
    epochs: Epochs = None,
    settings: Settings = None,
) -> None:
    """Train a linear classifier on the frozen backbone, with augmentation, as in the paper."""
    _evaluate("linear", run, data, recipe=recipe, epochs=epochs, settings=settings or [])


@evaluate.command("finetune")
def evaluate_finetune(
    run: Spec, data: Splits, epochs: Epochs = None, settings: Settings = None
) -> None:
    """Train the backbone and a classifier together on all labels."""
    _evaluate("finetune", run, data, epochs=epochs, settings=settings or [])


@evaluate.command("semi")
def evaluate_semi(
    run: Spec,
    data: Splits,
    fraction: Annotated[float, option("F", "Fraction of the labels, such as 0.01 or 0.1.")],
    names: Annotated[
        Path | None,
        option(
            "FILE",
            "File that lists the labeled images, one name per line. Default: drawn at random.",
            "--list",
        ),
    ] = None,
    epochs: Epochs = None,
    settings: Settings = None,
) -> None:
    """Train the backbone and a classifier together on a fraction of the labels."""
    _evaluate(
        "semi", run, data, fraction=fraction, names=names, epochs=epochs, settings=settings or []
    )


@evaluate.command("places205")
def evaluate_places205(
    run: Spec,
    data: Annotated[
        Path, argument("DATA", "Folder with train_places205.csv, val_places205.csv and images.")
    ],
    epochs: Epochs = None,
    settings: Settings = None,
) -> None:
    """Train a linear classifier on the frozen backbone and the scenes of Places205."""
    _evaluate("places205", run, data, epochs=epochs, settings=settings or [])


@evaluate.command("voc07")
def evaluate_voc07(
    run: Spec,
    data: Annotated[
        Path, argument("DATA", "Folder that contains VOCdevkit/VOC2007, or VOC2007 itself.")
    ],
    jobs: Annotated[
        int | None,
        option("N", "Number of processes. Default: one per core.", min=1),
    ] = None,
) -> None:
    """Classify Pascal VOC 2007 with a linear SVM per class (11-point mean average precision)."""
    _evaluate("voc07", run, data, jobs=jobs)


@evaluate.command("coco")
def evaluate_coco(
    run: Spec,
    data: Annotated[Path, argument("DATA", "Folder with annotations/, train2017/ and val2017/.")],
    scale: Annotated[
        str | None,
        option("NAME", "full (the paper's 1× schedule) or small. Default: full if there is a GPU."),
    ] = None,
    iterations: Annotated[
        int | None, option("N", "Number of iterations; the schedule scales with it.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        option("KEY=VALUE", "Change a setting, such as lr=0.02; repeatable.", "--set"),
    ] = None,
) -> None:
    """Detect and segment objects with Mask R-CNN C4.

    Safe to interrupt; run the same command to resume.
    """
    _evaluate("coco", run, data, scale=scale, iterations=iterations, settings=settings or [])
