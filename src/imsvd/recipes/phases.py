"""What a method counts in epochs, such as when its queue begins, in a shorter or longer training."""

from imsvd.config import Config

COUNTED_IN_EPOCHS = {"swav": "queue_start_epoch", "la": "warmup_epochs", "pcl": "warmup_epochs"}
"""The settings of methods that are a number of epochs."""


def phases_in_proportion(config: Config, epochs: int) -> list[str]:
    """Return the settings, as for `--set`, that keep the method's phases at their share of `epochs`.

    A method that warms up for 10 of 38 epochs would otherwise do nothing else in a run of 10.
    """
    name = COUNTED_IN_EPOCHS.get(config.method.name)
    if name is None:
        return []
    published: int = getattr(config.method, name)
    # A phase does not vanish, however short the training.
    shorter = max(min(1, published), round(published * epochs / config.training.epochs))
    return [f"method.{name}={shorter}"]
