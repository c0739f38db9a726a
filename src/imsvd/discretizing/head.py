"""Training of the head that turns cached features into discrete variables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from imsvd.checkpoints import seed_random_state
from imsvd.config import Config
from imsvd.discretizing.cache import Half, release
from imsvd.discretizing.held_out import measure_codes
from imsvd.distributed import on_first_rank, together
from imsvd.encoder import Encoder, save_encoder, saved_epoch
from imsvd.engine.batches import EpochOrder
from imsvd.engine.hardware import share_norms
from imsvd.engine.loop import Training, TrainingPlan
from imsvd.methods import MethodOutput, build_method
from imsvd.pretraining.display import TrainingDisplay
from imsvd.pretraining.metrics import EpochMetrics, MetricsLog, peak_memory
from imsvd.pretraining.optimizers import build_optimizer, learning_rate, set_learning_rate
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


class HeadTraining(Training[FeaturePair]):
    """A head in training on cached features, and the run folder it fills.

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
        self.config, self.frozen, self.run = config, config.frozen, run
        self.encoder, self.features = encoder, features
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
        self.method = share_norms(build_method(config.method, backbone, len(self.rows)), fabric)
        super().__init__(
            fabric,
            self.method,
            build_optimizer(self.method, config),
            TrainingPlan(
                place=run.path,
                checkpoints=run.checkpoints,
                images=images,
                epochs=config.training.epochs,
                steps_per_epoch=self.order.steps_per_epoch * self.frozen.passes,
                seed=config.seed,
                checkpoint_minutes=config.compute.checkpoint_minutes,
            ),
        )
        self.seconds = 0.0
        self.metrics = EpochMetrics()

    def prepare(self, console: Console) -> None:
        """Open the log."""
        del console
        self._log = together(self._open_log)

    def _open_log(self) -> MetricsLog | None:
        if not self.fabric.is_global_zero:
            return None
        return MetricsLog(self.run, self.config, self.epoch)

    def display(self, console: Console) -> TrainingDisplay:
        """Return the table of epochs with a bar below it."""
        training = self.config.training
        self._display = TrainingDisplay(
            console,
            training.epochs,
            training.batch_size,
            {**self.config.method.labels, **LABELS},
            knn=False,
        )
        return self._display

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

    def set_learning_rates(self) -> None:
        """Follow warm-up and cosine."""
        lr = learning_rate(self.config, self.step, self.steps_per_epoch)
        set_learning_rate(self.optimizer, lr, self.config.peak_lr)

    def loss(self, batch: FeaturePair) -> Tensor:
        """Return the loss of both views."""
        output: MethodOutput = self.model(batch.views, batch.samples)
        self._output = output
        return output.loss

    def after_step(self) -> None:
        """Update the means of the epoch."""
        with torch.no_grad():
            self.metrics.update(self._output, self.method.statistics(self._output.embedding))

    def begin_epoch(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()
        self._began_at_step = self.step
        done = self.step % self.steps_per_epoch
        self._display.begin_epoch(self.epoch + 1, done, self.steps_per_epoch)

    def end_epoch(self) -> None:
        """Log the means of the epoch and what held-out images show."""
        seconds = time.monotonic() - self._began
        self.seconds += seconds
        images = (self.step - self._began_at_step) * self.config.training.batch_size
        record: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            **self.metrics.summarize(self.method, None),
            "images_per_second": images / seconds,
            "seconds": seconds,
            "total_seconds": self.seconds,
            "peak_memory": peak_memory(),
            "bounds": self.method.bounds(self.config.training.batch_size),
        }
        record["health"].pop("share_above_0.99", None)  # leaves room for what follows
        self.metrics = EpochMetrics()
        on_first_rank(lambda: self._measure_and_log(record))
        self._began = time.monotonic()  # measuring is not training time

    def _measure_and_log(self, record: dict[str, Any]) -> None:
        if len(self.held_out):
            units = self.config.method.code_head.units
            head = self.method.get_submodule("projector")
            record["health"] |= measure_codes(head, self.features, self.held_out, units)
        if self._log is not None:
            self._log.write(record)
        self._display.end_epoch(record, record["bounds"])

    def write_outputs(self) -> None:
        """Write the encoder, backbone included, when the head is complete."""
        if self.step < self.last_step:
            return
        backbone = self.encoder.backbone.state_dict()
        state = {f"backbone.{name}": value for name, value in backbone.items()}
        save_encoder(self.run, self.config, state | dict(self.method.state_dict()), self.epoch)

    def extra_state(self) -> dict[str, Any]:
        """Return the time spent and the means of an unfinished epoch."""
        return {
            "seconds": self.seconds + time.monotonic() - self._began,
            "metrics": self.metrics.state_dict(),
        }

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Continue the time and the means."""
        self.seconds = state["seconds"]
        self.metrics.load_state_dict(state["metrics"])

    def is_finished_without_checkpoint(self) -> bool:
        """Whether the encoder is that of the last epoch."""
        return saved_epoch(self.run) == self.config.training.epochs

    @property
    def divergence_remedy(self) -> str:
        """What to change when the loss is no longer finite."""
        return "lower optimizer.lr with --set, in a new --out"

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
