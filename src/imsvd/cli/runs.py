"""Commands for finished runs: info, results, explain, explore, replay, codes, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperCommand

from imsvd.cli.app import Data, Run, Spec, app, argument, console, name_list, option, print_path
from imsvd.cli.indexing import is_index, show_index
from imsvd.errors import InputError


@app.command()
def info(
    run: Annotated[Path, argument("RUN", "Run folder, or an index.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all files of an index with their hashes.")
    ] = False,
) -> None:
    """Show the state of a run (method, data, last epoch, results) or what is in an index."""
    if is_index(run):
        show_index(run, verify)
        return
    if verify:
        raise InputError(f"{run} is not an index; --verify is for indexes.")
    from imsvd.runs import RunFolder, read_results  # noqa: PLC0415

    folder = RunFolder(run)
    config, metrics = folder.config(), folder.metrics()
    table = Table(show_header=False, box=None)
    table.add_row("method", f"{config.method.name} on {config.backbone.name}")
    table.add_row("data", config.data.source)
    table.add_row("epochs", f"{metrics[-1]['epoch'] if metrics else 0} of {config.training.epochs}")
    if metrics:
        last = metrics[-1]
        terms = ", ".join(f"{name} {value:.3f}" for name, value in last["terms"].items())
        table.add_row("loss", f"{last['loss']:.3f}  ({terms})")
        health = (f"{name} {value:.3g}" for name, value in last["health"].items())
        table.add_row("health", ", ".join(health))
        speed = f"{last['images_per_second']:.0f} images/s"
        table.add_row("time", f"{last['total_seconds'] / 60:.1f} min, {speed}")
    if folder.bad_images.exists():
        count = len(folder.bad_images.read_text().splitlines())
        table.add_row("bad images", f"{count}, listed in {folder.bad_images}")
    for result in read_results(run):
        table.add_row(result["protocol"], f"{json.dumps(result['metrics'])}  on {result['data']}")
    console.print(table)


@app.command()
def results(
    runs: Annotated[list[Path], argument("RUN", "Run folders, or folders below results/.")],
    form: Annotated[str, option("FORMAT", "text, markdown, csv or json.", "--format")] = "text",
) -> None:
    """Show the latest result of every protocol, next to the paper's for the same setting."""
    from imsvd.evaluation.results import results_table  # noqa: PLC0415

    typer.echo(results_table(runs, form))


class _ExplainCommand(TyperCommand):
    """Names the parts of an explanation in its help; they are known only after importing torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from imsvd.explanations import PARTS  # noqa: PLC0415

        for parameter in self.params:
            if parameter.name == "only":
                parameter.help = f"Parts to make: {', '.join(PARTS)}. Default: all."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


@app.command(cls=_ExplainCommand)
def explain(
    run: Run,
    data: Data,
    split: Annotated[
        str, option("SPLIT", "train (all images if there is no test split) or test.")
    ] = "train",
    only: Annotated[str, option("PART,…", "Parts to make.")] = "",
    judge: Annotated[
        str | None,
        option(
            "ENCODER",
            "Also measure how alike a unit's images are under this encoder: a run folder, timm:NAME or "
            "torchvision:NAME. It encodes up to 20,000 images.",
        ),
    ] = None,
) -> None:
    """Measure and draw what each variable and unit responds to, and write a report.

    Safe to interrupt; run the same command to resume.
    """
    from imsvd import explanations  # noqa: PLC0415
    from imsvd.runs import RunFolder  # noqa: PLC0415

    summary = explanations.explain(
        run, data, split=split, only=name_list(only), judge=judge, console=console
    )
    if (table := explanations.properties_table(summary)) is not None:
        console.print(table)
    if (note := explanations.training_note(RunFolder(run), summary)) is not None:
        console.print(note, highlight=False)
    print_path("Results", run / "explanations")
    print_path("Report", explanations.report_path(run))


@app.command()
def explore(
    places: Annotated[
        list[Path],
        argument(
            "RUN|INDEX|FOLDER",
            "Run folders that `imsvd explain` has explained, indexes, and folders that hold some.",
        ),
    ],
    host: Annotated[str, option("ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        option("N", "Port to listen on; 0 picks a free one.", min=0, max=65535),
    ] = 8000,
    allow_network: Annotated[
        bool,
        typer.Option("--allow-network", help="Accept remote connections that present the token."),
    ] = False,
    token: Annotated[
        str | None, option("TOKEN", "Access token; generated automatically with --allow-network.")
    ] = None,
    no_browser: Annotated[
        bool,
        typer.Option(
            "--no-browser",
            help="Print the address without opening a browser. None is opened without a display, over SSH, with "
            "--allow-network or from a script.",
        ),
    ] = False,
) -> None:
    """Explore explained runs and indexes in a browser.

    For a run (`imsvd explain RUN DATA` first): variables, units, images, maps, training; for several, a
    comparison. For an index (`imsvd index RUN DATA --out INDEX` first): search, duplicates, drift. Ctrl-C stops
    the server.
    """
    try:
        from imsvd.explorer import serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise InputError(
            f"the explorer needs {error.name}, which is not installed; "
            "install it with `pip install 'imsvd[explorer]'`."
        ) from error
    serve(
        places,
        host=host,
        port=port,
        token=token,
        allow_network=allow_network,
        browser=not no_browser,
        console=console,
    )


@app.command()
def replay(run: Run) -> None:
    """Repeat the step at which the loss of a run stopped being finite, and show where it went wrong.

    The step is kept in RUN/divergence. Exit code 1: the repetition has other bits than the run.
    """
    from imsvd.distributed import rank  # noqa: PLC0415
    from imsvd.replay import print_replay  # noqa: PLC0415
    from imsvd.replay import replay as repeat  # noqa: PLC0415

    found = repeat(run)
    if rank() == 0:
        print_replay(found, run, console)
    if found.differing:
        raise typer.Exit(1)


@app.command()
def codes(
    run: Spec,
    data: Data,
    out: Annotated[Path, option("FILE", "Parquet file to write.")],
    split: Annotated[
        str, option("SPLIT", "train (all images if there is no test split), test or all.")
    ] = "train",
    embedding: Annotated[
        bool, typer.Option("--embedding", help="Also write the features.")
    ] = False,
    index: Annotated[
        Path | None,
        option(
            "INDEX",
            "Index of this run: images that it holds unchanged are not encoded again; their confidences are "
            "those of the index, in steps.",
        ),
    ] = None,
) -> None:
    """Write the discrete code of every image, with its confidence, to a Parquet file."""
    from imsvd.codes import write_codes  # noqa: PLC0415

    written = write_codes(
        run, data, out, split=split, embedding=embedding, index=index, console=console
    )
    print_path(f"Codes of {written.images:,} images", out)


@app.command()
def export(
    run: Spec,
    out: Annotated[Path, option("FILE", "File to write; for timm and huggingface, a new folder.")],
    form: Annotated[
        str,
        option(
            "FORMAT", "torchvision, timm, detectron2, safetensors, huggingface or onnx.", "--format"
        ),
    ],
    output_kind: Annotated[
        str,
        option("KIND", "Output of an ONNX graph: features, probabilities, codes, or all three."),
    ] = "features",
) -> None:
    """Export an encoder to the format of another tool, and verify it by loading it there."""
    from imsvd.encoder import open_encoder  # noqa: PLC0415
    from imsvd.export import export_encoder  # noqa: PLC0415

    path = export_encoder(open_encoder(run), form, out, output_kind=output_kind)
    print_path("Exported to", path)
