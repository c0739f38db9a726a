"""`pretrain` and how it arrives at a configuration: recipe, images, memory, overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from imsvd.config import Config
from imsvd.datasets import ImageSource, open_source, small_image_size
from imsvd.datasets.opening import absolute
from imsvd.encoder import Encoder, load
from imsvd.pretraining import train
from imsvd.pretraining.fitness import fit_to_memory
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
