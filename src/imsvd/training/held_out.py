"""The images that a classifier in training is tested on, each counted once over all ranks."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from imsvd.config import Config
from imsvd.datasets import ImageSource, Quarantine, Subset, load_into_memory
from imsvd.distributed import all_reduce_sum, own_slice, together
from imsvd.encoder import EncoderDescription
from imsvd.evaluation import extract_features
from imsvd.evaluation.classification import count_hits
from imsvd.training.hardware import worker_count


class HeldOutImages:
    """This rank's share of the test images; small ones are read once and kept."""

    def __init__(
        self, source: ImageSource, description: EncoderDescription, config: Config
    ) -> None:
        self.description, self.config = description, config
        own = own_slice(len(source))
        self.source = Subset(source, range(own.start, own.stop))
        self.images = together(lambda: _small_images(self.source) if len(self.source) else None)

    def measure(self, network: nn.Module, fabric: Fabric) -> dict[str, Any]:
        """Accuracies in percent over all readable test images, and how many those are.

        Top-5 is left out where there are no more than five classes.
        """
        counts = together(lambda: self._counts(network, fabric) if len(self.source) else [0, 0, 0])
        total = all_reduce_sum(torch.tensor(counts, device=fabric.device))
        top1, top5, count = total.tolist()
        measured: dict[str, Any] = {"top1": 100 * top1 / count}
        if len(self.source.classes) > 5:
            measured["top5"] = 100 * top5 / count
        return measured | {"test_images": count}

    def _counts(self, network: nn.Module, fabric: Fabric) -> list[int]:
        """Hits among the first one and the first five, and images, of this rank's share."""
        in_memory = self.images is not None
        with fabric.autocast():
            found = extract_features(
                network,
                self.source,
                size=self.description.size,
                mean=self.description.mean,
                std=self.description.std,
                device=fabric.device,
                workers=0 if in_memory else worker_count(self.config, fabric),
                images=self.images,
            )
        assert found.labels is not None
        hits = [count_hits(found.features, found.labels, most) for most in (1, 5)]
        return [*hits, len(found.features)]


def _small_images(source: ImageSource) -> Tensor | None:
    """All images as one tensor, if they are small, of one size and readable."""
    quarantine = Quarantine(source, limit=1)
    images = load_into_memory(source, quarantine)
    return None if quarantine.count else images
