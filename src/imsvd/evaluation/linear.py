"""Linear evaluation: a linear classifier on the frozen backbone, trained on augmented images.

This is the protocol behind the paper's main table. The backbone stays in evaluation mode; every
epoch sees other crops and flips, so that features are computed anew each time. The quick
alternative on cached features is `linear_probe`, whose numbers are not interchangeable with these.
"""

from __future__ import annotations

from imsvd.datasets import ImageSource, small_image_size
from imsvd.errors import InputError
from imsvd.evaluation.classification import ClassificationSettings

LINEAR_RECIPES = {
    # The paper's: lr 0.02, cosine, weight decay 1e-6, crops of 0.2 to 1 (its script has 0.08).
    "imagenet": ClassificationSettings(head_lr=0.02, weight_decay=1e-6),
    # The released CIFAR script's, which follows MoCo's: lr 30, a tenth of it at 60 and at 80.
    "cifar10": ClassificationSettings(head_lr=30, milestones=(60, 80)),
}


def linear_settings(train: ImageSource, recipe: str | None = None) -> ClassificationSettings:
    """The settings called `recipe`, or those for images as small as CIFAR's or as large as ImageNet's."""
    if recipe is None:
        recipe = "imagenet" if small_image_size(train) is None else "cifar10"
    if recipe not in LINEAR_RECIPES:
        raise InputError(
            f"there is no recipe {recipe!r} for linear evaluation; choose {', '.join(LINEAR_RECIPES)}."
        )
    return LINEAR_RECIPES[recipe]
