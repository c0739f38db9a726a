"""Commands that show and hand on what a run has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imsvd.cli.app import app, console
from imsvd.cli.shared import (
    Data,
    Run,
    Spec,
)


@app.command()
def scenes(
    folder: Annotated[Path, typer.Argument(help="A new folder; an interrupted one is completed.")],
    images: Annotated[
        int, typer.Option(help="Scenes to train on; half as many are for testing.")
    ] = 500,
    size: Annotated[int, typer.Option(help="Side of the pictures in pixels.")] = 128,
    seed: Annotated[int, typer.Option(help="Another seed gives other scenes.")] = 0,
    layout: Annotated[str, typer.Option("--format", help="coco or voc.")] = "coco",
) -> None:
    """Draw scenes of several shapes with boxes and masks, to try detection and VOC07 on."""
    from imsvd.datasets.drawn.scene_files import write_scenes  # noqa: PLC0415

    write_scenes(folder, images=images, size=size, seed=seed, layout=layout, console=console)
    console.print(f"{images} + {images // 2} scenes: {folder}", highlight=False)


@app.command()
def export(
    run: Spec,
    form: Annotated[
        str,
        typer.Option("--format", help="torchvision, timm, detectron2, safetensors or onnx."),
    ],
    out: Annotated[Path, typer.Option(help="The file, or for timm the new folder.")],
    output_kind: Annotated[
        str,
        typer.Option(help="What an ONNX graph gives: features, probabilities or codes."),
    ] = "features",
) -> None:
    """Write an encoder in the form another tool reads, checked by loading it there."""
    from imsvd import api  # noqa: PLC0415

    written = api.export(run, form, out, output_kind=output_kind)
    console.print(f"Written: {written}", highlight=False, soft_wrap=True)


@app.command()
def codes(
    run: Spec,
    data: Data,
    out: Annotated[Path, typer.Option(help="The Parquet file.")],
    split: Annotated[
        str, typer.Option(help="train (everything, where there is no test part), test or all.")
    ] = "train",
    embedding: Annotated[
        bool, typer.Option("--embedding", help="Write the features beside the codes.")
    ] = False,
) -> None:
    """Write the discrete code of every image, with its confidence, to a Parquet file."""
    from imsvd import api  # noqa: PLC0415

    written = api.write_codes(run, data, out, split=split, embedding=embedding, console=console)
    console.print(
        f"Codes of {written.images:,} images: {out}", highlight=False, markup=False, soft_wrap=True
    )


@app.command()
def explain(
    run: Run,
    data: Data,
    split: Annotated[
        str, typer.Option(help="train (everything, where there is no test part) or test.")
    ] = "train",
    only: Annotated[
        str,
        typer.Option(
            metavar="PART,…",
            help="joint, embeddings, discreteness, galleries, grad_cam, faithfulness, meaning, "
            "retrieval. Default: all.",
        ),
    ] = "",
) -> None:
    """Measure and draw what each variable and unit sees; kill it and run it again to go on."""
    from imsvd import explanations  # noqa: PLC0415

    chosen = [name.strip() for name in only.split(",") if name.strip()]
    summary = explanations.explain(run, data, split=split, only=chosen, console=console)
    if (table := explanations.properties_table(summary)) is not None:
        console.print(table)
    console.print(f"Results: {run / 'explanations'}", highlight=False, soft_wrap=True)
    console.print(f"Report: {explanations.report_path(run)}", highlight=False, soft_wrap=True)


@app.command()
def results(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders below results/.", metavar="RUN…")
    ],
    form: Annotated[str, typer.Option("--format", help="text, markdown, csv or json.")] = "text",
) -> None:
    """Show the latest result of every protocol, beside the paper's where the setting is the same."""
    from imsvd.evaluation.results import results_table  # noqa: PLC0415

    typer.echo(results_table(runs, form))
