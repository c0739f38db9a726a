"""The three sizes of experiment for which every method has settings."""

from typing import Literal

Scale = Literal["small", "cifar10", "imagenet"]
"""small: minutes on a CPU; cifar10: ResNet-18 on one GPU; imagenet: ResNet-50 for 100 epochs."""
