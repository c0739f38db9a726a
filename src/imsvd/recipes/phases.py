"""What a method counts in epochs, such as when its queue begins, in training of another length."""

from collections.abc import Sequence

from imsvd.config import Config, override

COUNTED_IN_EPOCHS = {"swav": "queue_start_epoch", "la": "warmup_epochs", "pcl": "warmup_epochs"}
"""The settings of methods that are a number of epochs."""


def override_in_proportion(config: Config, assignments: Sequence[str]) -> Config:
    """Return `config` with assignments applied; where they shorten the training, phases shrink with it.

    A method that warms up for 10 of 38 epochs would otherwise do nothing else in a run of 10. In
    longer training phases stay as published. Assignments of the phase itself are obeyed.
    """
    changed = override(config, assignments)
    epochs = changed.training.epochs
    if epochs >= config.training.epochs:
        return changed
    return override(config, [*phases_in_proportion(config, epochs), *assignments])


def phases_in_proportion(config: Config, epochs: int) -> list[str]:
    """Return the settings, as for `--set`, that keep the method's phases at their share of `epochs`."""
    name = COUNTED_IN_EPOCHS.get(config.method.name)
    if name is None:
        return []
    published: int = getattr(config.method, name)
    return [f"method.{name}={in_proportion(published, config.training.epochs, epochs)}"]


def in_proportion(phase: int, whole: int, epochs: int) -> int:
    """Return the length in a training of `epochs` of a phase that is `phase` of `whole` epochs.

    Neither the phase nor what follows it vanishes, however short the training (but for one epoch,
    which has no room for both).
    """
    return max(min(1, phase), min(round(phase * epochs / whole), epochs - 1))
