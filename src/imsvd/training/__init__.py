"""Training: the loop, its data, optimisers, metrics and checkpoints."""

from imsvd.training.loop import train

__all__ = ["train"]
