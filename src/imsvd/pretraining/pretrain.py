"""What the command line does, as functions: configure, pretrain, export, write codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from imsvd import codes
from imsvd.codes import Written
from imsvd.config import Config
from imsvd.datasets import ImageSource, open_source, small_image_size
from imsvd.datasets.opening import absolute
from imsvd.encoder import Encoder, load, open_encoder
from imsvd.export import export_encoder
from imsvd.pretraining import train
from imsvd.pretraining.fitness import fit_to_memory
from imsvd.progress import progress_bar
from imsvd.recipes import fit_to_images, override_in_proportion, recipe
from imsvd.runs import RunFolder


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
    values["data"]["source"] = absolute(data)
    return override_in_proportion(Config.model_validate(values), settings)


def automatic_config(source: ImageSource, method: str = "imsvd") -> Config:
    """Choose a recipe by image size and hardware, and sizes that images and GPU memory allow."""
    on_cpu = not torch.cuda.is_available()
    small = small_image_size(source) is not None
    if small:
        config = recipe("cifar10-cpu" if on_cpu else "cifar10", method)
    else:
        config = recipe("folder-cpu" if on_cpu else "imagenet", method)
    return fit_to_memory(fit_to_images(config, len(source)), len(source))


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
