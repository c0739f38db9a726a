"""What the protocols that train a classifier have in common: settings, labeled data, top-k hits.

Linear evaluation, fine-tuning, semi-supervised learning and Places205 differ in these settings and
in which images carry labels, and in nothing else. `imsvd.evaluation.supervised` is their one loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from imsvd.config import ComputeSettings
from imsvd.datasets import ImageSource, open_source
from imsvd.errors import InputError
from imsvd.settings import Settings, override_group, parse_settings
from imsvd.views.settings import Range

STEPS_PER_EPOCH = 4
"""A published batch that would leave fewer steps than this is halved until it does not."""


class ClassificationSettings(Settings):
    """How a linear classifier, and with it the backbone unless that is frozen, is trained by SGD."""

    frozen: bool = Field(
        True, description="the backbone stays as it is, in evaluation mode; only the head trains"
    )
    epochs: int = Field(100, ge=1)
    batch_size: int = Field(256, ge=2, description="images per step over all processes together")
    head_lr: float = Field(
        gt=0, description="learning rate of the classifier for a batch of 256; scaled by batch/256"
    )
    backbone_lr: float = Field(
        0.0, ge=0, description="that of everything else; scaled likewise; unused when frozen"
    )
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, description="of all that trains, biases included")
    milestones: tuple[int, ...] = Field(
        (), description="epochs after which both rates are multiplied by decay; none: cosine to 0"
    )
    decay: float = Field(0.1, gt=0, lt=1)
    crop_scale: Range = Field(
        (0.2, 1.0), description="smallest and largest share of a training image that is cropped"
    )
    seed: int = Field(0, ge=0, description="of the head's first weights, the order and the crops")
    bad_image_limit: float = Field(
        0.01, ge=0, le=1, description="share of unreadable training images that stops it"
    )
    compute: ComputeSettings = ComputeSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.frozen and self.backbone_lr == 0:
            raise ValueError("backbone_lr=0 trains no backbone; set it above 0, or frozen=true")
        if any(one >= other for one, other in pairwise((0, *self.milestones))):
            raise ValueError(f"milestones={list(self.milestones)} must be rising epochs from 1 on")
        if self.milestones and self.milestones[-1] > self.epochs:
            raise ValueError(
                f"milestones={list(self.milestones)} lie beyond epochs={self.epochs}; shorten both with "
                "--epochs, or set milestones too"
            )
        if self.crop_scale[0] > self.crop_scale[1] or self.crop_scale[1] > 1:
            raise ValueError(
                f"crop_scale={list(self.crop_scale)} must be two rising shares of at most 1"
            )
        return self

    def rate_factor(self, epoch: int) -> float:
        """What the learning rates are multiplied by in `epoch`, counted from 0.

        It changes between epochs only, as in the scripts that the published numbers come from.
        """
        if self.milestones:
            return self.decay ** sum(epoch >= milestone for milestone in self.milestones)
        return 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))

    def for_epochs(self, epochs: int) -> ClassificationSettings:
        """The same for another number of epochs, with milestones at the same shares of them."""
        moved = {max(1, round(epoch * epochs / self.epochs)) for epoch in self.milestones}
        changed = {**self.model_dump(), "epochs": epochs, "milestones": sorted(moved)}
        return parse_settings(ClassificationSettings, changed)

    def for_images(self, count: int) -> ClassificationSettings:
        """The same with a batch that leaves some steps per epoch of `count` images."""
        most = max(2, count // STEPS_PER_EPOCH)
        largest = 2 ** (most.bit_length() - 1)
        return self.model_copy(update={"batch_size": min(self.batch_size, largest)})


def adapted(
    published: ClassificationSettings,
    train: ImageSource,
    epochs: int | None,
    assignments: Sequence[str],
) -> ClassificationSettings:
    """Published settings for the images there are, then what the user wants otherwise.

    Args:
        published: those of the protocol.
        train: the images to train on.
        epochs: another number of epochs.
        assignments: such as "head_lr=0.1" or "compute.devices=2"; values are read as YAML.
    """
    settings = published.for_images(len(train))
    if epochs is not None:
        settings = settings.for_epochs(epochs)
    settings = override_group(settings, assignments, owner="this protocol", example="head_lr=0.1")
    if settings.batch_size > len(train):
        raise InputError(
            f"batch_size={settings.batch_size} is larger than the {len(train)} training images; "
            f"set it to {len(train)} or less, or give more images."
        )
    return settings


class LabeledSplits(NamedTuple):
    """Images to train and to test on, every class among the former."""

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
    train, test = (_require_labels(data, split) for split in ("train", "test"))
    return checked_splits(data, train, test)


def _require_labels(data: str | Path, split: str) -> ImageSource:
    source = open_source(data, "train" if split == "train" else "test")
    if source.labels is None:
        raise InputError(
            f"{data} has no labels in its {split} split; use one sub-folder per class."
        )
    return source


def checked_splits(where: object, train: ImageSource, test: ImageSource) -> LabeledSplits:
    """Join two labeled sources; `where` names them when a class or a label is not usable."""
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
            f"{where} has no training image of the class {empty!r}; add one, or leave the class out."
        )
    return splits


def count_hits(logits: Tensor, labels: Tensor, most: int) -> int:
    """How many of the labels (n,) are among the `most` largest of their logits (n, classes)."""
    found = logits.topk(min(most, logits.shape[1]), dim=1).indices
    return int((found == labels.to(found.device)[:, None]).sum())
