"""Training of the head that turns cached features into discrete variables."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from imsvd.checkpoints import seed_random_state
from imsvd.config import Config
from imsvd.discretizing.directions import FeatureDirections
from imsvd.discretizing.feature_file import (
    Half,
    Rows,
    expect_any_order,
    prefetch,
    read_features,
)
from imsvd.discretizing.held_out import measure_codes
from imsvd.encoder import Encoder, save_encoder
from imsvd.engine.batches import EpochOrder
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import share_norms
from imsvd.methods import build_method
from imsvd.networks import projector
from imsvd.pretraining.code import GivenFeatures
from imsvd.pretraining.run import MethodTraining
from imsvd.runs import RunFolder
from imsvd.views import keyed_order, keyed_uniforms

PAIR_STREAM, HELD_OUT_STREAM = 2**16 - 2, 2**16 - 3
"""Numbers of the random streams that choose pairs and held-out images; no real view has them."""
LABELS = {"share_decided": "held", "share_agreeing": "same", "shared_nats": "nats"}
"""Column titles of what held-out images show."""


class FeaturePair(NamedTuple):
    """The features of two views of the same images, (batch, width) each."""

    views: list[Tensor]
    samples: Tensor
    """(batch,) positions of the images in the data."""


def split_rows(count: int, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return the images to train on and those to hold out, both in ascending order."""
    held_out = min(max(1, round(share * count)), count - 2) if share else 0
    order = keyed_order(seed, 0, np.arange(count), HELD_OUT_STREAM)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


class Pairs(NamedTuple):
    """Which features a batch compares: an image and a view of it, twice, (batch, 2) each."""

    images: Rows
    views: Rows


def choose_pairs(seed: int, epoch: int, images: Rows, views: int) -> Pairs:
    """Draw two different views of each image."""
    uniforms = keyed_uniforms(seed, epoch, images, view=PAIR_STREAM, draws=2)
    first = np.floor(uniforms[:, 0] * views).astype(np.int64)
    step = 1 + np.floor(uniforms[:, 1] * (views - 1)).astype(np.int64)
    return Pairs(np.stack([images] * 2, 1), np.stack([first, (first + step) % views], 1))


def admit_neighbors(pairs: Pairs, nearest: Rows, share: float, seed: int, epoch: int) -> Pairs:
    """Replace the second image by one of its `nearest` (batch, count) in `share` of the pairs."""
    uniforms = keyed_uniforms(seed, epoch, pairs.images[:, 0], view=PAIR_STREAM, draws=2, start=2)
    chosen = np.floor(uniforms[:, 1] * nearest.shape[1]).astype(np.int64)
    neighbors = np.take_along_axis(nearest, chosen[:, None], 1)[:, 0]
    second = np.where(uniforms[:, 0] < share, neighbors, pairs.images[:, 1])
    return pairs._replace(images=np.stack([pairs.images[:, 0], second], 1))


class HeadTraining(MethodTraining[FeaturePair]):
    """A head in training on cached features.

    Args:
        config: of the run; `config.frozen` is set.
        run: the folder.
        fabric: launched.
        encoder: the frozen encoder, whose backbone is saved with the head.
        images: identifies the images.
        features: (images, views + 1, width), the plain image last.
        reader: maps features to what the head reads.
        neighbors: of each training image, (images, count), if a neighbor may be its second view.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        fabric: Fabric,
        encoder: Encoder,
        images: str,
        features: Half,
        reader: GivenFeatures | FeatureDirections,
        neighbors: Rows | None = None,
    ) -> None:
        assert config.frozen is not None
        self.frozen, self.encoder, self.features = config.frozen, encoder, features
        self.neighbors = neighbors
        self.rows, self.held_out = split_rows(len(features), self.frozen.held_out, config.seed)
        self.order = EpochOrder(
            len(self.rows),
            config.training.batch_size,
            config.seed,
            fabric.global_rank,
            fabric.world_size,
        )
        seed_random_state(config.seed)
        reader = copy.deepcopy(reader)
        if isinstance(reader, FeatureDirections) and len(config.method.code_head.projector) == 1:
            reader = reader.around_origin()
        method = share_norms(build_method(config.method, reader, len(self.rows)), fabric)
        steps = self.order.steps_per_epoch * self.frozen.passes
        super().__init__(config, run, fabric, method, images, steps)

    @property
    def labels(self) -> dict[str, str]:
        """Column titles of the table of epochs."""
        return {**self.config.method.labels, **LABELS}

    def batches(self, steps: range) -> Iterator[FeaturePair]:
        """Yield this rank's features of two views per image."""
        expect_any_order(self.features)
        pinned = self.fabric.device.type == "cuda"
        positions, pairs = self._draw(steps.start)
        for step in steps:
            chosen = zip(pairs.images.T, pairs.views.T, strict=True)
            views = [read_features(self.features, *column, pinned=pinned) for column in chosen]
            batch = FeaturePair(
                [self._send(view) for view in views], self._send(torch.from_numpy(positions))
            )
            if step + 1 < steps.stop:
                positions, pairs = self._draw(step + 1)
                prefetch(self.features, np.unique(pairs.images))
            yield batch

    def _draw(self, step: int) -> tuple[Rows, Pairs]:
        """Return the positions of this rank's images of `step`, and the views that are compared."""
        epoch, positions = self.order.indices(step)
        seed = self.config.seed
        pairs = choose_pairs(seed, epoch, self.rows[positions], self.frozen.views)
        if self.neighbors is None:
            return positions, pairs
        nearest = self.neighbors[positions]
        return positions, admit_neighbors(pairs, nearest, self.frozen.neighbor_share, seed, epoch)

    def _send(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.fabric.device, non_blocking=True)

    def check(self, record: dict[str, Any]) -> None:
        """Measure the codes of held-out images."""
        record["health"].pop("share_above_0.99", None)  # leaves room for what follows
        if len(self.held_out):
            units = self.config.method.code_head.units
            found = measure_codes(self._saved_head(), self.features, self.held_out, units)
            record["health"] |= {name: found.pop(name) for name in LABELS}
            record["held_out_images"] = len(self.held_out)
            # Too few images leave a share unknown, for which JSON has no number.
            record["lasting"] = {
                name: value for name, value in found.items() if math.isfinite(value)
            }

    def _head_state(self) -> dict[str, Tensor]:
        """Return the weights of the head, in a form that reads features as the encoder gives them."""
        state = self.method.state_dict()
        if isinstance(reader := self.method.get_submodule("backbone"), FeatureDirections):
            state = reader.fold(state, "projector.0")
        return {name: value for name, value in state.items() if name.startswith("projector.")}

    def _saved_head(self) -> nn.Module:
        """Return the head as it is saved, at the temperature of the code."""
        saved = self.config.method.saved_state(self._head_state())
        widths = self.encoder.num_features, *self.config.method.code_head.projector
        head = projector(widths).to(self.fabric.device).eval()
        head.load_state_dict({name.removeprefix("projector."): saved[name] for name in saved})
        return head

    def replay_facts(self) -> dict[str, Any]:
        """Return the number of images, the width of their features, and what the head reads of them."""
        reader = self.method.get_submodule("backbone")
        directions = reader.num_features if isinstance(reader, FeatureDirections) else 0
        width = self.encoder.num_features
        return {"images": len(self.features), "width": width, "directions": directions}

    def write_outputs(self) -> None:
        """Write the encoder, backbone included, when the head is complete."""
        if self.step < self.last_step:
            return
        backbone = self.encoder.backbone.state_dict()
        state = {f"backbone.{name}": value for name, value in backbone.items()}
        save_encoder(self.run, self.config, state | self._head_state(), self.epoch)
