"""Training of a detector: a stream of mirrored images, and steps for the engine's loop.

A step's images depend only on the seed and the step, so a resumed training continues as if it had not
been interrupted, with any number of worker processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from imsvd.checkpoints import seed_step
from imsvd.datasets.reading import load_batches
from imsvd.distributed import mean_over_ranks
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import share_norms, worker_count
from imsvd.engine.loop import StepBar, Training, TrainingPlan
from imsvd.errors import InputError
from imsvd.evaluation.coco.data import CocoSplit, Target
from imsvd.evaluation.coco.model import MaskRCNN, batch_norms
from imsvd.evaluation.coco.settings import DetectionSettings

Sample = tuple[Tensor, Target]
Batch = list[Sample]

_ORDER, _FLIP = range(2)

_LINES = 20
"""Number of loss lines printed during a training."""

_NAMES = {"loss_objectness": "object", "loss_rpn_box_reg": "anchor"}
"""Short names of torchvision's losses; a line should fit into 80 characters."""


class TrainingStream:
    """Trainable images of a split, indexed by position in the stream of all epochs."""

    def __init__(self, split: CocoSplit, seed: int) -> None:
        self.split, self.seed = split, seed
        self._epoch = -1
        self._order: list[int] = []

    def __getitem__(self, position: int) -> Sample:
        epoch, offset = divmod(position, len(self.split.trainable))
        if epoch != self._epoch:
            places = np.random.default_rng((self.seed, _ORDER, epoch)).permutation(
                self.split.trainable
            )
            self._epoch, self._order = epoch, places.tolist()
        place = self._order[offset]
        sample = self.split.read(place), self.split.target(place)
        flip = np.random.default_rng((self.seed, _FLIP, position)).random() < 0.5
        return mirror(*sample) if flip else sample

    def batch(self, positions: Iterable[int]) -> Batch:
        """Read the images at `positions`."""
        return [self[position] for position in positions]


def mirror(image: Tensor, target: Target) -> Sample:
    """Mirror an image and its target horizontally."""
    width = image.shape[-1]
    left, top, right, bottom = target["boxes"].unbind(dim=1)
    boxes = torch.stack((width - right, top, width - left, bottom), dim=1)
    return image.flip(-1), target | {"boxes": boxes, "masks": target["masks"].flip(-1)}


def training_batches(
    stream: TrainingStream,
    steps: range,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
) -> Iterator[Batch]:
    """Yield this rank's batch of every step; `batch_size` counts the images of all ranks."""
    share = batch_size // world_size
    starts = (step * batch_size + rank * share for step in steps)
    return load_batches(stream.batch, (range(start, start + share) for start in starts), workers)


def to_device(batch: Batch, device: torch.device) -> tuple[list[Tensor], list[Target]]:
    """Move a batch to `device`, with images scaled to [0, 1]."""
    images = [image.to(device, non_blocking=True).float() / 255 for image, _ in batch]
    targets = [
        {name: value.to(device, non_blocking=True) for name, value in target.items()}
        for _, target in batch
    ]
    return images, targets


class DetectorTraining(Training[Batch]):
    """A detector in training.

    Args:
        detector: the network.
        stream: training images.
        settings: schedule, sizes and hardware.
        folder: folder of the checkpoints.
        fabric: launched Fabric.
    """

    seed_every_step = True  # torchvision samples anchors and regions at random

    def __init__(
        self,
        detector: MaskRCNN,
        stream: TrainingStream,
        settings: DetectionSettings,
        folder: Path,
        fabric: Fabric,
    ) -> None:
        if settings.batch_size % fabric.world_size:
            raise InputError(
                f"batch_size={settings.batch_size} does not divide by {fabric.world_size} "
                "processes; choose a multiple."
            )
        self.settings, self.stream = settings, stream
        self.detector = share_norms(detector, fabric)
        super().__init__(
            fabric,
            self.detector,
            detector_optimizer(detector, settings),
            TrainingPlan(
                place=folder,
                checkpoints=folder,
                images=stream.split.fingerprint,
                epochs=1,
                steps_per_epoch=settings.iterations,
                seed=settings.seed,
                checkpoint_minutes=settings.compute.checkpoint_minutes,
                identity={"evaluation": folder.name},
            ),
        )
        self.losses: dict[str, Tensor] = {}
        self.steps_summed = 0

    def prepare(self, console: Console) -> None:
        """Switch to training mode."""
        del console
        self.detector.train()

    def display(self, console: Console) -> StepBar:
        """Return a bar over all iterations."""
        self._bar = StepBar(console, "detector", self.step, self.last_step)
        return self._bar

    def batches(self, steps: range) -> Iterable[Batch]:
        """Return this rank's images of `steps`."""
        return training_batches(
            self.stream,
            steps,
            batch_size=self.settings.batch_size,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            workers=worker_count(self.settings.compute, self.fabric),
        )

    def set_learning_rates(self) -> None:
        """Follow warm-up and decay; all groups share one rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate(self.step)

    def loss(self, batch: Batch) -> Tensor:
        """Return the sum of torchvision's losses."""
        losses: dict[str, Tensor] = self.model(*to_device(batch, self.fabric.device))
        for name, loss in losses.items():
            self.losses[name] = self.losses.get(name, torch.zeros_like(loss)) + loss.detach()
        self.steps_summed += 1
        return torch.stack(list(losses.values())).sum()

    def after_step(self) -> None:
        """Print the mean losses at regular intervals."""
        if self.step % max(1, self.last_step // _LINES) == 0:
            self._bar.say(f"{self.step:>7,}  {self.report()}")

    def report(self) -> str:
        """Return the mean losses since the last report as a line."""
        means = {name: float(value) / self.steps_summed for name, value in self.losses.items()}
        self.losses, self.steps_summed = {}, 0
        terms = " ".join(f"{_NAMES.get(name, name)} {value:.2f}" for name, value in means.items())
        return f"loss {sum(means.values()):.2f} ({terms})"

    @property
    def divergence_remedy(self) -> str:
        """Advice for a loss that is no longer finite."""
        return "lower lr or raise warmup_share, such as --set lr=0.02"

    def precise_norms(self) -> None:
        """Replace BatchNorm's decaying averages by averages over further batches, as MoCo does.

        A decaying average covers only the last few batches, and each has few images.
        """
        steps = self.settings.iterations + np.arange(self.settings.precise_batches)
        norms = [] if self.settings.norm == "frozen" else batch_norms(self.detector)
        if not norms or not len(steps):
            return
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()  # type: ignore[operator]
            norm.momentum = None  # type: ignore[assignment]
        self.detector.train()
        with torch.no_grad():
            for number, batch in zip(
                steps, self.batches(range(steps[0], steps[-1] + 1)), strict=True
            ):
                seed_step(self.plan.seed, int(number), self.fabric.global_rank)
                self.detector(*to_device(batch, self.fabric.device))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            statistics = {name: norm.get_buffer(name) for name in ("running_mean", "running_var")}
            for name, mean in mean_over_ranks(statistics).items():
                norm.get_buffer(name).copy_(mean)


def detector_optimizer(model: nn.Module, settings: DetectionSettings) -> torch.optim.SGD:
    """Build SGD without weight decay for norms."""
    norms = {parameter for norm in batch_norms(model) for parameter in norm.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {
            "params": [parameter for parameter in trained if parameter not in norms],
            "weight_decay": settings.weight_decay,
        },
        {
            "params": [parameter for parameter in trained if parameter in norms],
            "weight_decay": 0.0,
        },
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)
