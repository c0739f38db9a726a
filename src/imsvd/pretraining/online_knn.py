"""The kNN check during training, with the same evaluator as `imsvd evaluate knn`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from imsvd.config import Config
from imsvd.datasets import ImageSource, Subset, open_source
from imsvd.errors import InputError
from imsvd.evaluation import Features, KNNSettings, extract_features, knn, usable_neighbors

HELD_OUT = 5
"""Without a test split, every fifth training image is a query; the rest form the bank."""


class OnlineKNN:
    """Measures kNN accuracy on at most `knn_samples` images of each split."""

    def __init__(self, config: Config, train: ImageSource, device: torch.device) -> None:
        self.config, self.device = config, device
        self.bank, self.queries = _choose(config, train)
        self.images = len(self.queries)

    @classmethod
    def where_possible(
        cls, config: Config, train: ImageSource, device: torch.device
    ) -> OnlineKNN | None:
        """Return the check if there are labels to compare with and it is not switched off."""
        if train.labels is None or config.training.knn_every == 0:
            return None
        return cls(config, train, device)

    def due(self, epoch: int) -> bool:
        """Whether `epoch`, counted from 1, ends with a check."""
        return epoch % self.config.training.knn_every == 0 or epoch == self.config.training.epochs

    def __call__(
        self, backbone: nn.Module, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, float]:
        """Return `{"knn_20": …}` in percent; `progress` is called with images done and in total."""
        known, total = len(self.bank), len(self.bank) + len(self.queries)
        bank = self._features(
            backbone, self.bank, progress and (lambda done, _: progress(done, total))
        )
        queries = self._features(
            backbone, self.queries, progress and (lambda done, _: progress(known + done, total))
        )
        assert bank.labels is not None
        assert queries.labels is not None
        settings = usable_neighbors(KNNSettings(neighbors=(20,)), len(bank.features))
        return knn(bank.features, bank.labels, queries.features, queries.labels, settings)

    def _features(
        self,
        backbone: nn.Module,
        source: ImageSource,
        progress: Callable[[int, int], None] | None,
    ) -> Features:
        view = self.config.views.views[0]
        return extract_features(
            backbone,
            source,
            size=self.config.views.whole_image_size,
            mean=view.mean,
            std=view.std,
            device=self.device,
            progress=progress,
        )


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
