"""Recipes: functions that return a complete configuration. `RECIPES` is the whole table."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from imsvd.config import Config, method_settings_class
from imsvd.errors import InputError
from imsvd.recipes.cifar10 import cifar10, cifar10_cpu
from imsvd.recipes.folder import folder_cpu
from imsvd.recipes.imagenet import imagenet
from imsvd.recipes.method_recipes import METHOD_RECIPES
from imsvd.recipes.scale import Scale
from imsvd.recipes.shapes import shapes

RECIPES: dict[str, Callable[[], Config]] = {
    "shapes": shapes,
    "cifar10": cifar10,
    "cifar10-cpu": cifar10_cpu,
    "folder-cpu": folder_cpu,
    "imagenet": imagenet,
}


SCALES: dict[str, Scale] = {"cifar10": "cifar10", "imagenet": "imagenet"}
"""Which settings a method takes under a recipe; under those not listed, the ones for a CPU."""


def recipe(name: str, method: str = "imsvd") -> Config:
    """Return the configuration of the recipe called `name`, for IMSVD or another method.

    Another method keeps the recipe's data, views, backbone, epochs and batch, and brings its own
    heads and optimizer, unless its recipe says otherwise.
    """
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no recipe {name!r}; {hint}Recipes: {', '.join(RECIPES)}.")
    config = RECIPES[name]()
    if method == config.method.name:
        return config
    method_settings_class(method)  # refuses an unknown name
    adapted = METHOD_RECIPES[method](config, SCALES.get(name, "small"))
    return Config.model_validate(adapted.model_dump())


__all__ = ["RECIPES", "recipe"]
