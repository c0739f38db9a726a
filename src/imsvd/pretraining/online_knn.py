"""The kNN check during training, with the same evaluator as `imsvd evaluate knn`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from imsvd.config import Config
from imsvd.datasets import ImageSource, Subset, open_source, small_image_size
from imsvd.distributed import share_buffers, together
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import worker_count
from imsvd.errors import InputError
from imsvd.evaluation import Features, KNNSettings, extract_features
from imsvd.evaluation.features import own_batches
from imsvd.evaluation.knn import knn_of_shares
from imsvd.networks import feature_width

HELD_OUT = 5
"""Without a test split, every fifth training image is a query; the rest form the bank."""


class OnlineKNN:
    """Measures kNN accuracy on at most `knn_samples` images of each split."""

    def __init__(self, config: Config, train: ImageSource, fabric: Fabric) -> None:
        self.config, self.fabric = config, fabric
        self.bank, self.queries = _choose(config, train)
        self.images = len(self.queries)

    @classmethod
    def where_possible(cls, config: Config, train: ImageSource, fabric: Fabric) -> OnlineKNN | None:
        """Return the check if there are labels to compare with and it is not switched off."""
        if train.labels is None or config.training.knn_every == 0:
            return None
        return cls(config, train, fabric)

    def due(self, epoch: int) -> bool:
        """Whether `epoch`, counted from 1, ends with a check."""
        return epoch % self.config.training.knn_every == 0 or epoch == self.config.training.epochs

    def __call__(
        self, backbone: nn.Module, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, float]:
        """Return `{"knn_20": …}` in percent; every rank must call this and encodes its share.

        `progress` is called with this rank's images, done and in total.
        """
        share_buffers(backbone)  # ranks without synchronized BatchNorm have statistics of their own
        shares = [own_batches(source) for source in (self.bank, self.queries)]
        known, total = len(shares[0]), sum(map(len, shares))
        bank = self._features(
            backbone, shares[0], progress and (lambda done, _: progress(done, total))
        )
        queries = self._features(
            backbone, shares[1], progress and (lambda done, _: progress(known + done, total))
        )
        settings = KNNSettings(neighbors=(20,))
        return knn_of_shares(bank, queries, settings, self.fabric.device)

    def _features(
        self,
        backbone: nn.Module,
        source: ImageSource,
        progress: Callable[[int, int], None] | None,
    ) -> Features:
        view = self.config.views.views[0]
        small = small_image_size(source) is not None if len(source) else True
        encode = partial(
            extract_features,
            backbone,
            source,
            size=self.config.views.whole_image_size,
            mean=view.mean,
            std=view.std,
            device=self.fabric.device,
            workers=0 if small else worker_count(self.config.compute, self.fabric),
            progress=progress,
        )
        found = together(encode if len(source) else lambda: None)
        found = found or Features(torch.empty(0, feature_width(backbone)), source.labels, {})
        return found._replace(attributes={})  # only labels are compared


def _choose(config: Config, train: ImageSource) -> tuple[ImageSource, ImageSource]:
    most = config.training.knn_samples
    try:
        test: ImageSource | None = open_source(config.data.source, "test")
    except InputError:
        test = None
    if test is None or test.labels is None:
        chosen = spread(len(train), most)
        return (
            Subset(train, [index for place, index in enumerate(chosen) if place % HELD_OUT]),
            Subset(train, chosen[::HELD_OUT]),
        )
    return Subset(train, spread(len(train), most)), Subset(test, spread(len(test), most))


def spread(count: int, most: int) -> list[int]:
    """Return up to `most` indices spread evenly over `count`, so that sorted classes all appear."""
    chosen = min(count, most)
    return [place * count // chosen for place in range(chosen)]
