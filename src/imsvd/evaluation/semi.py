"""Semi-supervised learning: fine-tuning on the labels of 1 % or 10 % of the images.

Settings are VICReg's (https://github.com/facebookresearch/vicreg): 20 epochs, batch 256, SGD with
cosine and without weight decay; for 1 % a rate of 0.03 for the backbone and 0.08 for the classifier,
for 10 % of 0.01 and 0.1. SwAV's instead are 0.02 and 5, and 0.01 and 0.2, a fifth of them after 12
and again after 16 epochs.

The images that keep their labels come from a list, such as SimCLR's for ImageNet that everybody uses
(https://github.com/google-research/simclr, imagenet_subsets), or are drawn.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from imsvd.datasets import ImageSource, Subset
from imsvd.errors import InputError
from imsvd.evaluation.classification import ClassificationSettings, LabeledSplits, checked_splits
from imsvd.evaluation.finetune import FINETUNE_SETTINGS
from imsvd.views import keyed_uniforms

FEW = 0.03
"""Up to this share the settings for 1 % serve, above it those for 10 %."""

# The "view" number whose random stream draws the labeled images; no real view has it.
_DRAW_STREAM = 2**16 - 2


def semi_settings(fraction: float) -> ClassificationSettings:
    """The published settings for 1 % or 10 % of the labels, whichever is nearer."""
    if not 0 < fraction < 1:
        raise InputError(
            f"--fraction {fraction:g} is no share of the labels between 0 and 1; "
            "give 0.01 or 0.1, or use `imsvd evaluate finetune` for all of them."
        )
    if fraction > FEW:
        return FINETUNE_SETTINGS
    return FINETUNE_SETTINGS.model_copy(update={"backbone_lr": 0.03, "head_lr": 0.08})


def semi_splits(
    splits: LabeledSplits, fraction: float, *, names: Path | None = None, seed: int = 0
) -> LabeledSplits:
    """The same test images, and of the training images those that keep their labels.

    Args:
        splits: all images.
        fraction: the share of labels to draw, unless there is a list.
        names: a file with the name of one image a line.
        seed: of the draw; another one draws other images.
    """
    if names is not None:
        return checked_splits(names, Subset(splits.train, listed(splits.train, names)), splits.test)
    part = Subset(splits.train, stratified_draw(splits, fraction, seed))
    return checked_splits("the draw", part, splits.test)


def stratified_draw(splits: LabeledSplits, fraction: float, seed: int) -> list[int]:
    """Positions of `fraction` of every class, rounded, but at least one image of each.

    A draw depends on the seed and on the order of the images alone, and a smaller one is part of
    every larger one.
    """
    labels = splits.train_labels.numpy()
    every = np.arange(len(labels))
    keys = keyed_uniforms(seed, 0, every, view=_DRAW_STREAM, draws=1)[:, 0]
    chosen: list[int] = []
    for label in range(len(splits.class_names)):
        members = every[labels == label]
        wanted = max(1, round(fraction * len(members)))
        chosen += members[np.argsort(keys[members], kind="stable")[:wanted]].tolist()
    return sorted(chosen)


def listed(train: ImageSource, path: Path) -> list[int]:
    """Positions of the images that a file names, one a line, with or without their folders."""
    try:
        lines = [os.fsdecode(line).strip() for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}.") from error
    wanted = dict.fromkeys(line for line in lines if line and not line.startswith("#"))
    if not wanted:
        raise InputError(f"{path} lists no images; write one file name a line.")
    places: dict[str, list[int]] = {name: [] for name in wanted}
    for index in range(len(train)):
        identity = train.identity(index)
        for name in {identity, identity.rpartition("/")[2]} & places.keys():
            places[name].append(index)
    for name, found in places.items():
        if len(found) != 1:
            problem = (
                f"which {len(found)} training images are called; add their folder"
                if found
                else "which is not among the training images; add it or take it off the list"
            )
            raise InputError(f"{path} lists {name}, {problem}.")
    return sorted({found[0] for found in places.values()})
