"""Recipes: functions that return a complete configuration. `RECIPES` is the whole table."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from imsvd.config import Config
from imsvd.errors import InputError
from imsvd.methods.base import Scale
from imsvd.recipes.adapting import (
    SCALE_EPOCHS,
    apply_row,
    fit_to_images,
    override_in_proportion,
    phases_in_proportion,
)
from imsvd.recipes.imsvd import cifar10, cifar10_cpu, folder_cpu, imagenet, shapes

RECIPES: dict[str, Callable[[], Config]] = {
    "shapes": shapes,
    "cifar10": cifar10,
    "cifar10-cpu": cifar10_cpu,
    "folder-cpu": folder_cpu,
    "imagenet": imagenet,
}

SCALES: dict[str, Scale] = {"cifar10": "cifar10", "imagenet": "imagenet"}
"""Rows that other methods take under a recipe; recipes not listed take the small ones."""


def recipe(name: str, method: str = "imsvd") -> Config:
    """Return the configuration of the recipe called `name`, for IMSVD or another method.

    Another method keeps the recipe's data, views, backbone, epochs and batch and has its own heads
    and optimizer, unless its row for the recipe's scale says otherwise.
    """
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no recipe {name!r}; {hint}Recipes: {', '.join(RECIPES)}.")
    config = RECIPES[name]()
    if method == config.method.name:
        return config
    return apply_row(config, method, SCALES.get(name, "small"))


__all__ = [
    "RECIPES",
    "SCALES",
    "SCALE_EPOCHS",
    "fit_to_images",
    "override_in_proportion",
    "phases_in_proportion",
    "recipe",
]
