"""Recipes: functions that return a complete configuration. `RECIPES` is the whole table."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from imsvd.config import Config
from imsvd.errors import InputError
from imsvd.recipes.cifar10 import cifar10, cifar10_cpu
from imsvd.recipes.folder import folder_cpu
from imsvd.recipes.imagenet import imagenet
from imsvd.recipes.shapes import shapes

RECIPES: dict[str, Callable[[], Config]] = {
    "shapes": shapes,
    "cifar10": cifar10,
    "cifar10-cpu": cifar10_cpu,
    "folder-cpu": folder_cpu,
    "imagenet": imagenet,
}


def recipe(name: str) -> Config:
    """Return the configuration of the recipe called `name`."""
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no recipe {name!r}; {hint}Recipes: {', '.join(RECIPES)}.")
    return RECIPES[name]()


__all__ = ["RECIPES", "recipe"]
