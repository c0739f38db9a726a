"""`imsvd evaluate …`: one command per protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imsvd.cli.app import (
    ProtocolEpochs,
    ProtocolSets,
    Spec,
    Splits,
    console,
    evaluate,
    print_metrics,
    print_trained,
    say_where,
)


@evaluate.command("knn")
def evaluate_knn(
    run: Spec,
    data: Splits,
    k: Annotated[
        list[int] | None,
        typer.Option(help="Number of neighbors; repeat for several. Default: 20 and 200."),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(help="How fast a vote falls with distance: exp(cosine / temperature)."),
    ] = 0.07,
    distance: Annotated[
        str,
        typer.Option(
            metavar="cosine|euclidean",
            help="Euclidean votes weigh exp(-d²/2/temperature), d in units of the features' length.",
        ),
    ] = "cosine",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Where it runs: compute.devices=2."),
    ] = None,
) -> None:
    """Classify test images by their nearest training images (weighted votes)."""
    from imsvd.evaluation import protocols  # noqa: PLC0415

    print_trained(
        run,
        protocols.evaluate_knn(
            run,
            data,
            neighbors=k or (20, 200),
            temperature=temperature,
            distance=distance,
            settings=settings or [],
            console=console,
        ),
    )


@evaluate.command("linear-probe")
def evaluate_linear_probe(run: Spec, data: Splits) -> None:
    """Fit a linear classifier on cached features: quick, and not the paper's augmented protocol."""
    from imsvd.evaluation import protocols  # noqa: PLC0415

    print_metrics(protocols.evaluate_linear_probe(run, data, console=console))
    say_where(run)


@evaluate.command("linear")
def evaluate_linear(
    run: Spec,
    data: Splits,
    recipe: Annotated[
        str | None,
        typer.Option(help="imagenet or cifar10; by default chosen from the size of the images."),
    ] = None,
    epochs: ProtocolEpochs = None,
    settings: ProtocolSets = None,
) -> None:
    """Train a linear classifier on the frozen backbone and augmented images: the paper's protocol."""
    from imsvd.evaluation import protocols  # noqa: PLC0415

    print_trained(
        run,
        protocols.evaluate_linear(
            run, data, recipe=recipe, epochs=epochs, settings=settings or [], console=console
        ),
    )


@evaluate.command("finetune")
def evaluate_finetune(
    run: Spec, data: Splits, epochs: ProtocolEpochs = None, settings: ProtocolSets = None
) -> None:
    """Train the backbone and a classifier together on all labels."""
    from imsvd.evaluation import protocols  # noqa: PLC0415

    print_trained(
        run,
        protocols.evaluate_finetune(
            run, data, epochs=epochs, settings=settings or [], console=console
        ),
    )


@evaluate.command("semi")
def evaluate_semi(
    run: Spec,
    data: Splits,
    fraction: Annotated[float, typer.Option(help="Share of the labels, such as 0.01 or 0.1.")],
    names: Annotated[
        Path | None,
        typer.Option(
            "--list", help="A file that names the labeled images, one a line. Default: a draw."
        ),
    ] = None,
    epochs: ProtocolEpochs = None,
    settings: ProtocolSets = None,
) -> None:
    """Train the backbone and a classifier together on the labels of few images."""
    from imsvd.evaluation import protocols  # noqa: PLC0415

    print_trained(
        run,
        protocols.evaluate_semi(
            run,
            data,
            fraction=fraction,
            names=names,
            epochs=epochs,
            settings=settings or [],
            console=console,
        ),
    )


@evaluate.command("places205")
def evaluate_places205(
    run: Spec,
    data: Annotated[
        Path, typer.Argument(help="The folder with train_places205.csv, val_places205.csv, images.")
    ],
    epochs: ProtocolEpochs = None,
    settings: ProtocolSets = None,
) -> None:
    """Train a linear classifier on the frozen backbone and Places205's scenes."""
    from imsvd.evaluation import protocols  # noqa: PLC0415

    print_trained(
        run,
        protocols.evaluate_places205(
            run, data, epochs=epochs, settings=settings or [], console=console
        ),
    )


@evaluate.command("voc07")
def evaluate_voc07(
    run: Spec,
    data: Annotated[
        Path, typer.Argument(help="The folder that holds VOCdevkit/VOC2007, or VOC2007 itself.")
    ],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one for every processor.")
    ] = None,
) -> None:
    """Classify Pascal VOC 2007 with a linear SVM per class (11-point mean average precision)."""
    from imsvd.evaluation import protocols  # noqa: PLC0415

    print_metrics(protocols.evaluate_voc07(run, data, jobs=jobs, console=console))
    say_where(run)


@evaluate.command("coco")
def evaluate_coco(
    run: Spec,
    data: Annotated[
        Path, typer.Argument(help="A folder with annotations/, train2017/ and val2017/.")
    ],
    scale: Annotated[
        str | None,
        typer.Option(help="full (the paper's 1× schedule) or small; full where there is a GPU."),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Train for so many; the schedule shrinks with it.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override any setting, such as lr=0.02."),
    ] = None,
) -> None:
    """Detect and segment objects with Mask R-CNN C4; kill it at any moment and run it again."""
    from imsvd.distributed import rank  # noqa: PLC0415
    from imsvd.evaluation import protocols  # noqa: PLC0415

    metrics = protocols.evaluate_coco(
        run, data, scale=scale, iterations=iterations, settings=settings or [], console=console
    )
    if rank() == 0:
        print_metrics(metrics)
        say_where(run)
