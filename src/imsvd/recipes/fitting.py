"""Recipes on fewer images than they were written for."""

from __future__ import annotations

from collections.abc import Sequence

from imsvd.config import Config, override

BATCHES_PER_EPOCH = 4
"""A batch leaves at least this many steps per epoch."""
IMAGES_PER_CLUSTER = 10
"""The smallest clusters that a method is given, on average."""
FROZEN_EPOCHS = 2
"""For how long prototypes are frozen at most; more steps than a training has would be for ever."""


def fit_to_images(config: Config, images: int) -> Config:
    """Return `config` with the batch, and what a method counts in images, no larger than `images` allow."""
    most = max(2, images // BATCHES_PER_EPOCH)
    batch_size = min(config.training.batch_size, 2 ** (most.bit_length() - 1))
    return override(
        config,
        [f"training.batch_size={batch_size}", *_method_settings(config, images, batch_size)],
    )


def _method_settings(config: Config, images: int, batch_size: int) -> list[str]:
    method = config.method.model_dump()
    settings = []
    if "clusters" in method:
        settings.append(f"method.clusters={_fewer_clusters(method['clusters'], images)}")
    if "num_background" in method:
        background = min(method["num_background"], max(2, images // IMAGES_PER_CLUSTER))
        settings.append(f"method.num_background={background}")
    if "freeze_steps" in method:
        steps = min(method["freeze_steps"], FROZEN_EPOCHS * images // batch_size)
        settings.append(f"method.freeze_steps={steps}")
    if "whitening_size" in method and method["whitening_size"] > batch_size:
        *hidden, width = method["projector"]
        narrow = min(width, max(1, batch_size // 2))  # fewer images cannot be whitened
        settings += [
            f"method.whitening_size={batch_size}",
            f"method.projector={[*hidden, narrow]}",
        ]
    return settings


def _fewer_clusters(clusters: Sequence[int], images: int) -> list[int]:
    """Keep the proportions of several clusterings while the finest has ten images in each."""
    share = min(1.0, images / IMAGES_PER_CLUSTER / max(clusters))
    return [max(1, round(count * share)) for count in clusters]
