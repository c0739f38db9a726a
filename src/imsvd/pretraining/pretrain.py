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
from imsvd.errors import InputError
from imsvd.pretraining import train
from imsvd.pretraining.fitness import fit_to_memory
from imsvd.recipes import fit_to_images, override_in_proportion, recipe
from imsvd.recipes.continuing import continue_from, open_pretrained, refuse_other_backbone
from imsvd.runs import RunFolder


def pretrain(
    data: str | Path,
    out: str | Path,
    *,
    recipe: str | None = None,
    method: str | None = None,
    init: str | Path | None = None,
    size: int | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Encoder:
    """Train an encoder on the images of `data`, or resume the run in `out`, and return it.

    Args:
        data: a folder of images, or the name of a dataset such as "shapes" or "cifar10".
        out: the run folder.
        recipe: a name that `imsvd recipes` lists; chosen from the images and hardware if left out.
        method: a method to use instead of the recipe's.
        init: a pretrained encoder to continue from: a run folder, `timm:NAME[:FILE]`,
            `torchvision:NAME[:FILE]`; its backbone, normalization and image size are used.
        size: with `init`, the side of the views in pixels instead of the encoder's.
        settings: overrides such as "optimizer.lr=0.3".
        console: where to show progress; `Console(quiet=True)` shows nothing.
    """
    console = console or Console()
    config = configure(
        data, recipe_name=recipe, method=method, init=init, size=size, settings=settings
    )
    train(config, RunFolder(out), console)
    return load(out)


def configure(
    data: str | Path,
    *,
    recipe_name: str | None = None,
    method: str | None = None,
    init: str | Path | None = None,
    size: int | None = None,
    settings: Sequence[str] = (),
) -> Config:
    """Return the complete configuration for training on `data`.

    A recipe that is named keeps its optimizer and length with `init` too.
    """
    method = method or "imsvd"
    if size is not None and init is None:
        raise InputError("--size is the size for --init; use --set views.views.0.size instead.")
    encoder = None if init is None else open_pretrained(init)
    if recipe_name:
        chosen, images = recipe(recipe_name, method), None
    else:
        source = open_source(data, "train")
        chosen, images = automatic_recipe(source, method), len(source)
    if init is not None and encoder is not None:
        chosen = continue_from(chosen, encoder, init, size, gentle=images is not None)
    if images is not None:
        chosen = fit_to_memory(chosen, images)
    values = chosen.model_dump(mode="json")
    values["data"]["source"] = absolute(data)
    config = override_in_proportion(Config.model_validate(values), settings)
    if encoder is not None:
        refuse_other_backbone(config, encoder)
    return config


def automatic_recipe(source: ImageSource, method: str = "imsvd") -> Config:
    """Choose a recipe by image size and hardware, and sizes that the number of images allows."""
    on_cpu = not torch.cuda.is_available()
    small = small_image_size(source) is not None
    if small:
        config = recipe("cifar10-cpu" if on_cpu else "cifar10", method)
    else:
        config = recipe("folder-cpu" if on_cpu else "imagenet", method)
    return fit_to_images(config, len(source))


def automatic_config(source: ImageSource, method: str = "imsvd") -> Config:
    """Choose a recipe as `automatic_recipe` does, and a batch that GPU memory allows."""
    return fit_to_memory(automatic_recipe(source, method), len(source))
