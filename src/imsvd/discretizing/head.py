"""Training of the head that turns cached features into discrete variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from imsvd.checkpoints import seed_random_state
from imsvd.config import Config
from imsvd.discretizing.cache import Half, release
from imsvd.discretizing.held_out import measure_codes
from imsvd.encoder import Encoder, save_encoder
from imsvd.engine.batches import EpochOrder
from imsvd.engine.hardware import share_norms
from imsvd.methods import build_method
from imsvd.pretraining.run import MethodTraining
from imsvd.runs import RunFolder
from imsvd.views import keyed_uniforms

PAIR_STREAM, HELD_OUT_STREAM = 2**16 - 2, 2**16 - 3
"""Numbers of the random streams that choose views and held-out images; no real view has them."""
LABELS = {"share_decided": "held", "share_agreeing": "same", "shared_nats": "nats"}
"""Column titles of what held-out images show."""

Rows = NDArray[np.int64]


class FeaturePair(NamedTuple):
    """The features of two views of the same images, (batch, width) each."""

    views: list[Tensor]
    samples: Tensor
    """(batch,) positions of the images in the data."""


class CachedBackbone(nn.Module):
    """Stands where a method expects its backbone; its inputs are features already."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        """Return the features."""
        return features


def split_rows(count: int, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return the images to train on and those to hold out, both in ascending order."""
    held_out = min(max(1, round(share * count)), count - 2) if share else 0
    keys = keyed_uniforms(seed, 0, np.arange(count), view=HELD_OUT_STREAM, draws=1)[:, 0]
    order = np.argsort(keys, kind="stable")
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def choose_views(seed: int, epoch: int, rows: Rows, views: int) -> NDArray[np.int64]:
    """Draw two different views for each image, (rows, 2)."""
    uniforms = keyed_uniforms(seed, epoch, rows, view=PAIR_STREAM, draws=2)
    first = np.floor(uniforms[:, 0] * views).astype(np.int64)
    step = 1 + np.floor(uniforms[:, 1] * (views - 1)).astype(np.int64)
    return np.stack([first, (first + step) % views], axis=1)


class HeadTraining(MethodTraining[FeaturePair]):
    """A head in training on cached features.

    Args:
        config: of the run; `config.frozen` is set.
        run: the folder.
        fabric: launched.
        encoder: the frozen encoder, whose backbone is saved with the head.
        images: identifies the images.
        features: (images, views + 1, width), the plain image last.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        fabric: Fabric,
        encoder: Encoder,
        images: str,
        features: Half,
    ) -> None:
        assert config.frozen is not None
        self.frozen, self.encoder, self.features = config.frozen, encoder, features
        self.rows, self.held_out = split_rows(len(features), self.frozen.held_out, config.seed)
        self.order = EpochOrder(
            len(self.rows),
            config.training.batch_size,
            config.seed,
            fabric.global_rank,
            fabric.world_size,
        )
        seed_random_state(config.seed)
        backbone = CachedBackbone(encoder.num_features)
        method = share_norms(build_method(config.method, backbone, len(self.rows)), fabric)
        steps = self.order.steps_per_epoch * self.frozen.passes
        super().__init__(config, run, fabric, method, images, steps)

    @property
    def labels(self) -> dict[str, str]:
        """Column titles of the table of epochs."""
        return {**self.config.method.labels, **LABELS}

    def batches(self, steps: range) -> Iterator[FeaturePair]:
        """Yield this rank's features of two views per image."""
        for step in steps:
            epoch, positions = self.order.indices(step)
            rows = self.rows[positions]
            chosen = choose_views(self.config.seed, epoch, rows, self.frozen.views)
            views = [self._read(rows, column) for column in chosen.T]
            release(self.features)
            yield FeaturePair(views, torch.from_numpy(positions).to(self.fabric.device))

    def _read(self, rows: Rows, views: NDArray[np.int64]) -> Tensor:
        # In the order of the file, which a disk reads faster, and back.
        order = np.argsort(rows, kind="stable")
        read = np.empty((len(rows), self.features.shape[-1]), np.float32)
        read[order] = self.features[rows[order], views[order]]
        return torch.from_numpy(read).to(self.fabric.device)

    def check(self, record: dict[str, Any]) -> None:
        """Measure the codes of held-out images."""
        record["health"].pop("share_above_0.99", None)  # leaves room for what follows
        if len(self.held_out):
            units = self.config.method.code_head.units
            head = self.method.get_submodule("projector")
            record["health"] |= measure_codes(head, self.features, self.held_out, units)

    def write_outputs(self) -> None:
        """Write the encoder, backbone included, when the head is complete."""
        if self.step < self.last_step:
            return
        backbone = self.encoder.backbone.state_dict()
        state = {f"backbone.{name}": value for name, value in backbone.items()}
        save_encoder(self.run, self.config, state | dict(self.method.state_dict()), self.epoch)
