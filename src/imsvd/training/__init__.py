"""Training: the loop, its data, optimizers, metrics and checkpoints."""

from imsvd.training.loop import train

__all__ = ["train"]
