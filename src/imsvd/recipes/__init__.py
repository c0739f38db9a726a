"""Recipes: functions that return a complete configuration. `RECIPES` is the whole table.

The recipes are IMSVD's; another method applies its row for the recipe's scale to them.
"""

import difflib
import json
from collections.abc import Callable, Sequence

from imsvd.config import Config, method_settings_class, override
from imsvd.errors import InputError
from imsvd.methods import METHODS
from imsvd.methods.code import CodeSettings
from imsvd.methods.settings import Scale
from imsvd.recipes.imsvd import cifar10, cifar10_cpu, folder_cpu, imagenet, shapes

RECIPES: dict[str, Callable[[], Config]] = {
    "shapes": shapes,
    "cifar10": cifar10,
    "cifar10-cpu": cifar10_cpu,
    "folder-cpu": folder_cpu,
    "imagenet": imagenet,
}
SCALES: dict[str, Scale] = {"cifar10": "cifar10", "imagenet": "imagenet"}
"""Scale of a recipe; recipes not listed are small."""
SCALE_EPOCHS: dict[Scale, int] = {"small": 38, "cifar10": 800, "imagenet": 100}
"""Epochs for which the rows of a scale state their settings that are counted in epochs."""
BATCHES_PER_EPOCH = 4
"""Smallest number of steps per epoch after fitting the batch to few images."""


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
    return _apply_row(config, method, SCALES.get(name, "small"))


def _apply_row(config: Config, method: str, scale: Scale) -> Config:
    """Return IMSVD's `config` with the changes in the row of another method."""
    kind = method_settings_class(method)
    row = kind.recipes[scale]
    settings = kind(**row.method)
    phases = settings.phases(SCALE_EPOCHS[scale], config.training.epochs)
    values = config.model_dump()
    values["method"] = settings.model_dump() | phases
    values["optimizer"] |= row.optimizer
    values["training"] |= row.training
    if not settings.code_head.units:  # the method has no variables of its own
        values["code"] = values["code"] or CodeSettings().model_dump()
    return Config.model_validate(values)


def recipe_rows() -> list[tuple[str, str, str]]:
    """Return method and scale, changes from IMSVD's recipe, and provenance of every row."""
    listed = []
    for name, (kind, _) in METHODS.items():
        for scale, row in kind.recipes.items():
            groups = {"method": row.method, "optimizer": row.optimizer, "training": row.training}
            changes = [
                f"{g}.{key}={value if isinstance(value, str) else json.dumps(value)}"
                for g, some in groups.items()
                for key, value in some.items()
            ]
            listed.append((f"{name} {scale}", " ".join(changes), row.provenance))
    return listed


def fit_to_images(config: Config, images: int) -> Config:
    """Return `config` with the batch and the method's sizes no larger than `images` allow."""
    most = max(2, images // BATCHES_PER_EPOCH)
    batch_size = min(config.training.batch_size, 2 ** (most.bit_length() - 1))
    values = config.model_dump()
    values["method"] = config.method.fit_to_images(images, batch_size).model_dump()
    values["training"]["batch_size"] = batch_size
    return Config.model_validate(values)


def override_in_proportion(config: Config, assignments: Sequence[str]) -> Config:
    """Return `config` with assignments applied; if they shorten the training, phases shrink with it.

    Otherwise a method that warms up for 10 of 38 epochs would do nothing else in a run of 10. In a
    longer training, phases stay as published. Assignments to a phase itself take precedence.
    """
    changed = override(config, assignments)
    epochs = changed.training.epochs
    if epochs >= config.training.epochs:
        return changed
    return override(config, [*phases_in_proportion(config, epochs), *assignments])


def phases_in_proportion(config: Config, epochs: int) -> list[str]:
    """Return the settings, as for `--set`, that keep the method's phases at their share of `epochs`."""
    phases = config.method.phases(config.training.epochs, epochs)
    return [f"method.{name}={value}" for name, value in phases.items()]
