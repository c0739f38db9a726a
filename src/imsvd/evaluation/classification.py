"""Settings and labeled images of the protocols that train a classifier.

Linear evaluation, fine-tuning, semi-supervised learning and Places205 differ only in these settings
and in which images keep their labels. `classifier` trains all of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from imsvd.config import ComputeSettings
from imsvd.datasets import ImageSource, Subset, small_image_size
from imsvd.errors import InputError
from imsvd.evaluation.features import labeled_source
from imsvd.settings import Settings, override_group, parse_settings
from imsvd.views import keyed_uniforms
from imsvd.views.settings import Range

STEPS_PER_EPOCH = 4
"""Fewest steps per epoch; the published batch is halved until small datasets reach it."""

FEW_LABELS = 0.03
"""Largest fraction of labels trained with the settings for 1 %; above it, those for 10 % apply."""

# A view number that no real view has, reserved for drawing the labeled images.
_DRAW_STREAM = 2**16 - 2


class ClassificationSettings(Settings):
    """SGD training of a linear classifier and, unless frozen, of the backbone below it."""

    frozen: bool = Field(
        True, description="keep the backbone fixed, in evaluation mode; train only the head"
    )
    epochs: int = Field(100, ge=1)
    batch_size: int = Field(256, ge=2, description="images per step, summed over all processes")
    head_lr: float = Field(
        gt=0, description="classifier's learning rate at batch size 256; scaled by batch_size/256"
    )
    backbone_lr: float = Field(
        0.0, ge=0, description="backbone's learning rate, scaled likewise; unused when frozen"
    )
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, description="applied to all parameters, biases included")
    milestones: tuple[int, ...] = Field(
        (), description="epochs after which both rates are multiplied by decay; empty: cosine to 0"
    )
    decay: float = Field(0.1, gt=0, lt=1)
    crop_scale: Range = Field(
        (0.2, 1.0), description="smallest and largest fraction of the image area in a random crop"
    )
    seed: int = Field(0, ge=0, description="seed of the head's weights, the order and the crops")
    bad_image_limit: float = Field(
        0.01, ge=0, le=1, description="fraction of unreadable training images that stops training"
    )
    compute: ComputeSettings = ComputeSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.frozen and self.backbone_lr == 0:
            raise ValueError("backbone_lr=0 trains no backbone; set it above 0, or frozen=true")
        if any(one >= other for one, other in pairwise((0, *self.milestones))):
            raise ValueError(
                f"milestones={list(self.milestones)} must be increasing epochs, starting at 1 or later"
            )
        if self.milestones and self.milestones[-1] > self.epochs:
            raise ValueError(
                f"milestones={list(self.milestones)} exceed epochs={self.epochs}; shorten both with "
                "--epochs, or set milestones too"
            )
        if self.crop_scale[0] > self.crop_scale[1] or self.crop_scale[1] > 1:
            raise ValueError(
                f"crop_scale={list(self.crop_scale)} must be two increasing fractions of at most 1"
            )
        return self

    def rate_factor(self, epoch: int) -> float:
        """Return the factor on both learning rates in `epoch`, counted from 0.

        It changes only between epochs, as in the scripts behind the published numbers.
        """
        if self.milestones:
            return self.decay ** sum(epoch >= milestone for milestone in self.milestones)
        return 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))

    def for_epochs(self, epochs: int) -> ClassificationSettings:
        """Return these settings for another number of epochs, with milestones moved in proportion."""
        moved = {max(1, round(epoch * epochs / self.epochs)) for epoch in self.milestones}
        changed = {**self.model_dump(), "epochs": epochs, "milestones": sorted(moved)}
        return parse_settings(ClassificationSettings, changed)

    def for_images(self, count: int) -> ClassificationSettings:
        """Return these settings with a batch small enough for `STEPS_PER_EPOCH` on `count` images."""
        most = max(2, count // STEPS_PER_EPOCH)
        largest = 2 ** (most.bit_length() - 1)
        return self.model_copy(update={"batch_size": min(self.batch_size, largest)})


LINEAR_RECIPES = {
    # From the paper; its released script crops from 0.08 instead of 0.2.
    "imagenet": ClassificationSettings(head_lr=0.02, weight_decay=1e-6),
    # From the released CIFAR script, which follows MoCo's.
    "cifar10": ClassificationSettings(head_lr=30, milestones=(60, 80)),
}
"""Linear evaluation, the protocol behind the paper's main table."""

FINETUNE_SETTINGS = ClassificationSettings(
    frozen=False, epochs=20, backbone_lr=0.01, head_lr=0.1, crop_scale=(0.08, 1.0)
)
"""VICReg's for 10 % of the labels (https://github.com/facebookresearch/vicreg).

Nobody has published settings for IMSVD with all labels; these are for the largest fraction that
VICReg's authors cover.
"""

PLACES205_SETTINGS = ClassificationSettings(
    epochs=14, head_lr=0.01, milestones=(5, 10), weight_decay=5e-4
)
"""From the paper; crops and testing follow linear evaluation."""


def linear_settings(train: ImageSource, recipe: str | None = None) -> ClassificationSettings:
    """Return the linear settings named `recipe`; by default, choose them by the images' size."""
    if recipe is None:
        recipe = "imagenet" if small_image_size(train) is None else "cifar10"
    if recipe not in LINEAR_RECIPES:
        raise InputError(
            f"there is no recipe {recipe!r} for linear evaluation; choose {', '.join(LINEAR_RECIPES)}."
        )
    return LINEAR_RECIPES[recipe]


def semi_settings(fraction: float) -> ClassificationSettings:
    """Return VICReg's settings for 1 % or 10 % of the labels, whichever is closer to `fraction`."""
    if not 0 < fraction < 1:
        raise InputError(
            f"--fraction {fraction:g} must lie between 0 and 1, such as 0.01 or 0.1; "
            "use `imsvd evaluate finetune` to train on all labels."
        )
    if fraction > FEW_LABELS:
        return FINETUNE_SETTINGS
    return FINETUNE_SETTINGS.model_copy(update={"backbone_lr": 0.03, "head_lr": 0.08})


def adapted(
    published: ClassificationSettings,
    train: ImageSource,
    epochs: int | None,
    assignments: Sequence[str],
) -> ClassificationSettings:
    """Fit published settings to the number of images, then apply the user's changes.

    `assignments` are overrides such as "head_lr=0.1" or "compute.devices=2"; values are YAML.
    """
    settings = published.for_images(len(train))
    if epochs is not None:
        settings = settings.for_epochs(epochs)
    settings = override_group(settings, assignments, owner="this protocol", example="head_lr=0.1")
    if settings.batch_size > len(train):
        raise InputError(
            f"batch_size={settings.batch_size} is larger than the {len(train)} training images; "
            f"set it to {len(train)} or less, or add images."
        )
    return settings


class LabeledSplits(NamedTuple):
    """Labeled images to train and test on; the training images cover every class."""

    train: ImageSource
    test: ImageSource
    class_names: tuple[str, ...]

    @property
    def train_labels(self) -> Tensor:
        """Class of every training image, (n,) int64."""
        assert self.train.labels is not None
        return self.train.labels

    @property
    def test_labels(self) -> Tensor:
        """Class of every test image, (n,) int64."""
        assert self.test.labels is not None
        return self.test.labels


def open_labeled(data: str | Path) -> LabeledSplits:
    """Open both splits of `data` and check their labels."""
    return checked_splits(data, labeled_source(data, "train"), labeled_source(data, "test"))


def checked_splits(where: object, train: ImageSource, test: ImageSource) -> LabeledSplits:
    """Join two labeled sources; error messages refer to them as `where`."""
    assert train.labels is not None
    names = train.classes or tuple(map(str, range(int(train.labels.max()) + 1)))
    splits = LabeledSplits(train, test, names)
    if len(names) < 2:
        raise InputError(f"{where} has a single class, {names[0]!r}; a classifier needs two.")
    for split, labels in (("training", splits.train_labels), ("test", splits.test_labels)):
        outside = labels[(labels < 0) | (labels >= len(names))]
        if len(outside):
            raise InputError(
                f"{where} has the label {int(outside[0])} among its {split} images, outside 0 to "
                f"{len(names) - 1}; correct it."
            )
    counts = torch.bincount(splits.train_labels, minlength=len(names))
    if not counts.all():
        empty = names[int(torch.argmin(counts))]
        raise InputError(
            f"{where} has no training image of the class {empty!r}; add one, or remove the class."
        )
    return splits


def semi_splits(
    splits: LabeledSplits, fraction: float, *, names: Path | None = None, seed: int = 0
) -> LabeledSplits:
    """Keep all test images, and only the training images whose labels may be used.

    Draws `fraction` of every class, unless the file `names` lists the labeled images, one name per
    line, such as SimCLR's for ImageNet (https://github.com/google-research/simclr, imagenet_subsets).
    """
    if names is not None:
        return checked_splits(names, Subset(splits.train, listed(splits.train, names)), splits.test)
    part = Subset(splits.train, stratified_draw(splits, fraction, seed))
    return checked_splits("the draw", part, splits.test)


def stratified_draw(splits: LabeledSplits, fraction: float, seed: int) -> list[int]:
    """Draw `fraction` of every class, rounded, but at least one image; return sorted positions.

    The draw depends only on the seed and the order of the images. With one seed, a smaller draw is
    part of every larger one.
    """
    labels = splits.train_labels.numpy()
    every = np.arange(len(labels))
    keys = keyed_uniforms(seed, 0, every, view=_DRAW_STREAM, draws=1)[:, 0]
    chosen: list[int] = []
    for label in range(len(splits.class_names)):
        members = every[labels == label]
        count = max(1, round(fraction * len(members)))
        chosen += members[np.argsort(keys[members], kind="stable")[:count]].tolist()
    return sorted(chosen)


def listed(train: ImageSource, path: Path) -> list[int]:
    """Return the positions of the images named in a file, one per line, with or without folders."""
    try:
        lines = [os.fsdecode(line).strip() for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}.") from error
    positions: dict[str, list[int]] = {
        line: [] for line in lines if line and not line.startswith("#")
    }
    if not positions:
        raise InputError(f"{path} lists no images; write one file name per line.")
    for index in range(len(train)):
        identity = train.identity(index)
        for name in {identity, identity.rpartition("/")[2]} & positions.keys():
            positions[name].append(index)
    for name, found in positions.items():
        if not found:
            raise InputError(
                f"{path} lists {name}, which is not among the training images; add the image or "
                "remove the line."
            )
        if len(found) > 1:
            raise InputError(
                f"{path} lists {name}, the name of {len(found)} training images; add their folder."
            )
    return sorted({found[0] for found in positions.values()})


def count_hits(logits: Tensor, labels: Tensor, most: int) -> int:
    """Count the labels (n,) that are among the `most` largest of their logits (n, classes)."""
    found = logits.topk(min(most, logits.shape[1]), dim=1).indices
    return int((found == labels.to(found.device)[:, None]).sum())
