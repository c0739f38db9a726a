"""Whether training that continues from pretrained weights has made the encoder better.

With labels, kNN accuracy says so. Without labels it is *self-retrieval*: the share of held-out
images of which a view's nearest neighbor, among the other views of all held-out images, is the other
view of the same image. It falls if features lose what tells images apart (collapse) and if they
change with crop and color, and images that were not trained on cannot be memorized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd.config import Config
from imsvd.datasets import ImageSource, Subset, open_source
from imsvd.engine.batches import EpochOrder, StreamedBatches
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import worker_count
from imsvd.errors import InputError
from imsvd.pretraining.online_knn import spread

HELD_OUT_SHARE = 10
"""Without labels and test split, one in so many images only measures the encoder."""
MOST_IMAGES = 1000
"""Largest number of images for self-retrieval."""
FEWEST_IMAGES = 50
"""Smallest number of images from which a share is measured."""
BATCH = 50


def hold_out(config: Config, source: ImageSource) -> tuple[ImageSource, ImageSource | None]:
    """Return the images to train on and, for a continued run without labels, those to measure on.

    Images of a test split are measured if there is one; otherwise some are taken from `source`.
    """
    if config.init is None or source.labels is not None or config.training.knn_every == 0:
        return source, None
    try:
        test = open_source(config.data.source, "test")
    except InputError:
        count = min(MOST_IMAGES, len(source) // HELD_OUT_SHARE)
        chosen = spread(len(source), count) if count >= FEWEST_IMAGES else []
        kept = sorted(set(range(len(source))) - set(chosen))
        return (Subset(source, kept), Subset(source, chosen)) if chosen else (source, None)
    chosen = spread(len(test), MOST_IMAGES)
    return source, Subset(test, chosen) if len(chosen) >= FEWEST_IMAGES else None


class SelfRetrieval:
    """Measures self-retrieval on `images`, whose views are the same at every call."""

    def __init__(self, config: Config, images: ImageSource, fabric: Fabric) -> None:
        order = EpochOrder(len(images), BATCH, config.seed)
        workers = worker_count(config.compute, fabric)
        pair = config.views.model_copy(update={"local_views": 0})
        self.steps = order.steps_per_epoch
        self.images = self.steps * BATCH
        self.batches = StreamedBatches(images, order, pair, config.seed, fabric.device, workers)

    @torch.no_grad()
    def __call__(
        self, backbone: nn.Module, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, float]:
        """Return `{"self_retrieval": …}` in percent; `progress` is as in `OnlineKNN`."""
        backbone.eval()
        features: list[list[Tensor]] = [[], []]
        for step, batch in enumerate(self.batches.steps(0, self.steps)):
            for view, kept in zip(batch.views, features, strict=True):
                kept.append(backbone(view).float())
            if progress is not None:
                progress(step * BATCH + len(batch.samples), self.images)
        backbone.train()
        return {"self_retrieval": self_retrieval(*(torch.cat(parts) for parts in features))}


def self_retrieval(first: Tensor, second: Tensor) -> float:
    """Return in percent how often a view's nearest neighbor is the other view of the same image.

    Args:
        first: (images, width) features of one view of each image.
        second: (images, width) features of the other.
    """
    views = F.normalize(torch.cat([first, second]), dim=1)
    similarities = (views @ views.T).fill_diagonal_(-math.inf)
    own = torch.arange(len(views), device=views.device).roll(len(first))
    return 100 * float((similarities.argmax(1) == own).float().mean())


_NAMES = {
    "knn_20": "kNN-20 on {images:,} images",
    "self_retrieval": "Share of {images:,} held-out images whose views find each other",
}


def describe_improvement(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return one sentence that compares the encoder before and after training, if it was measured.

    A difference counts from two standard errors on, as two independent samples would have them.
    """
    if not records or "before" not in records[-1]:
        return None
    last = records[-1]
    images = last["before"]["images"]
    for name, title in _NAMES.items():
        after = last.get("knn", {}).get(name, last.get(name))
        if name in last["before"] and after is not None:
            before = last["before"][name]
            share = (before + after) / 200
            error = 100 * math.sqrt(2 * share * (1 - share) / images)
            verdict = "training helped" if after > before else "training made the encoder worse"
            if abs(after - before) <= 2 * error:
                verdict = f"no clear difference (two standard errors are {2 * error:.1f} points)"
            measured = f"{before:.1f} % before training, {after:.1f} % after"
            return f"{title.format(images=images)}: {measured}; {verdict}."
    return None


def describe_gap(config: Config) -> str:
    """Return one sentence that says why a continued run does not know whether training helped."""
    if config.training.knn_every == 0:
        return "Whether training helped was not measured, because training.knn_every is 0."
    return (
        "Whether training helped was not measured: that takes labels, a test split of at least "
        f"{FEWEST_IMAGES} images, or at least {FEWEST_IMAGES * HELD_OUT_SHARE} images without either."
    )
