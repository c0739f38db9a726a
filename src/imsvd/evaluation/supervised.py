"""Evaluation by training a classifier: what a step is and what is kept, on the engine's loop.

What is trained, how long and on which images is in `evaluation.classification`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from imsvd.checkpoints import seed_random_state
from imsvd.datasets import BadImage
from imsvd.distributed import mean_over_ranks, on_first_rank
from imsvd.encoder import encoder_details
from imsvd.engine.batches import EpochOrder, build_batches
from imsvd.engine.hardware import launch, lay_out
from imsvd.engine.loop import StepBar, Training, TrainingPlan, shared_quarantine
from imsvd.errors import InputError
from imsvd.evaluation.classifier import Classifier, Evaluation, HeldOutImages, build_optimizer
from imsvd.evaluation.features import chance
from imsvd.evaluation.results import append_result, read_results
from imsvd.files import write_atomically
from imsvd.views import Batch

IGNORED = -100
"""The label that `cross_entropy` skips: that of an image which another one replaces."""


def evaluate_by_training(
    evaluation: Evaluation, run: Path, data: str, console: Console
) -> dict[str, float]:
    """Train, or go on training, and append the accuracies to results.jsonl; return them.

    Args:
        evaluation: what to do.
        run: the folder of results.jsonl and, in it, of evaluations/.
        data: what the user calls the images.
        console: where to show progress.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when everything has been saved.
    """
    folder = evaluation.folder(run)
    settings = evaluation.settings
    fabric = launch(settings.compute)
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    _require_divisible(settings.batch_size, fabric.world_size)
    if fabric.world_size > 1 and fabric.device.type == "cpu" and not settings.frozen:
        console.print("[yellow]BatchNorm is not synchronized between CPU processes.[/yellow]")
    training = ClassifierTraining(evaluation, folder, fabric)
    if not training.fit(console):
        console.print(f"Already evaluated: {escape(str(folder))}", highlight=False, soft_wrap=True)
    metrics = training.metrics()
    on_first_rank(lambda: _record(training, run, data))
    return metrics


def _record(training: ClassifierTraining, run: Path, data: str) -> None:
    """Append the result to results.jsonl, once."""
    evaluation, folder = training.evaluation, training.place
    encoder = encoder_details(evaluation.encoder)
    if _is_recorded(run, {"evaluation": folder.name} | encoder):
        return
    splits, settings = evaluation.splits, evaluation.settings
    details = training.details() | encoder
    details |= {
        "train_images": len(splits.train),
        "chance": chance(splits.test_labels),
        "evaluation": folder.name,
        "settings": settings.model_dump(mode="json", exclude={"compute"}),
    }
    if evaluation.labels:
        details["labels"] = evaluation.labels
    append_result(run, evaluation.protocol, training.metrics(), data=data, details=details)


class ClassifierTraining(Training[Batch]):
    """A classifier in training, tested after every epoch."""

    def __init__(self, evaluation: Evaluation, folder: Path, fabric: Fabric) -> None:
        self.evaluation = evaluation
        settings, splits = evaluation.settings, evaluation.splits
        self.order = EpochOrder(
            len(splits.train),
            settings.batch_size,
            settings.seed,
            fabric.global_rank,
            fabric.world_size,
        )
        self.history: list[dict[str, Any]] = []
        seed_random_state(settings.seed)
        classes = len(splits.class_names)
        self.network = lay_out(
            Classifier(evaluation.encoder, classes, frozen=settings.frozen),
            fabric,
            synchronized=not settings.frozen,
        )
        super().__init__(
            fabric,
            self.network,
            build_optimizer(self.network, settings),
            TrainingPlan(
                place=folder,
                checkpoints=folder / "checkpoints",
                images=splits.train.fingerprint(),
                epochs=settings.epochs,
                steps_per_epoch=self.order.steps_per_epoch,
                seed=settings.seed,
                checkpoint_minutes=settings.compute.checkpoint_minutes,
            ),
        )
        self.trained = self.network.trained
        self.labels = splits.train_labels.to(fabric.device, copy=True)
        self.epoch_loss = torch.zeros((), device=fabric.device)

    def prepare(self, console: Console) -> None:
        """Open the images to train and to test on."""
        evaluation, fabric = self.evaluation, self.fabric
        settings, train = evaluation.settings, evaluation.splits.train
        on_first_rank(lambda: self.place.mkdir(parents=True, exist_ok=True))
        self.quarantine = shared_quarantine(train, settings.bad_image_limit, self.place)
        self._batches = build_batches(
            train,
            self.quarantine,
            self.order,
            evaluation.views,
            settings.seed,
            settings.compute,
            fabric,
            console,
        )
        replaced = self.quarantine.replacements() != torch.arange(len(train))
        self.labels[replaced.to(fabric.device)] = IGNORED
        self.test = HeldOutImages(
            evaluation.splits.test, evaluation.encoder.description, settings.compute
        )

    def display(self, console: Console) -> StepBar:
        """Return a bar over all steps."""
        self._bar = StepBar(console, self.evaluation.protocol, self.step, self.last_step)
        return self._bar

    def batches(self, steps: range) -> Iterable[Batch]:
        """Return this rank's views of `steps`."""
        return self._batches.steps(steps.start, steps.stop)

    def bad_images(self, batch: Batch) -> list[BadImage]:
        """Return the unreadable images that were replaced in `batch`."""
        return batch.bad

    def set_learning_rates(self) -> None:
        """Scale every group's peak by the factor of the epoch."""
        factor = self.evaluation.settings.rate_factor(self.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]

    def loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy; images that replace unreadable ones do not count."""
        for item in batch.bad:
            self.labels[item.index] = IGNORED
        targets = self.labels[batch.samples]
        logits = self.model(batch.views[0])
        loss = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
        # Divided by all images, so that ranks weigh the same however many they ignore.
        loss = loss / len(targets)
        self.epoch_loss += loss.detach()
        return loss

    def end_epoch(self) -> None:
        """Test, and remember losses and accuracies."""
        loss = float(mean_over_ranks({"loss": self.epoch_loss / self.steps_per_epoch})["loss"])
        self.epoch_loss.zero_()
        rates = {group["name"]: group["lr"] for group in self.optimizer.param_groups}
        accuracies = self.test.measure(self.network, self.fabric)
        self.history.append({"epoch": self.epoch, "loss": loss, **rates, **accuracies})
        self._bar.say(
            f"epoch {self.epoch}/{self.evaluation.settings.epochs}   loss {loss:.3f}   "
            f"test top-1 {accuracies['top1']:.2f} %"
        )

    def write_outputs(self) -> None:
        """Write the epochs so far."""
        lines = "".join(json.dumps(record) + "\n" for record in self.history)
        write_atomically(self.place / "metrics.jsonl", lines.encode())

    def extra_state(self) -> dict[str, Any]:
        """Return the epochs so far and the loss of the current one."""
        return {"history": self.history, "epoch_loss": self.epoch_loss}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Continue both."""
        self.history = state["history"]
        self.epoch_loss = state["epoch_loss"].to(self.fabric.device)

    @property
    def divergence_remedy(self) -> str:
        """What to change when the loss is no longer finite."""
        settings = self.evaluation.settings
        rates = f"head_lr={settings.head_lr:g}"
        if not settings.frozen:
            rates += f" or backbone_lr={settings.backbone_lr:g}"
        return f"lower {rates} with --set"

    def metrics(self) -> dict[str, float]:
        """Return accuracies in percent after the last epoch and, so labeled, after the best one."""
        prefix = self.evaluation.protocol.replace("-", "_")
        last = self.history[-1]
        named = {f"{prefix}_{name}": last[name] for name in ("top1", "top5") if name in last}
        return named | {f"{prefix}_best_epoch_top1": self._best()["top1"]}

    def details(self) -> dict[str, Any]:
        """Return how many images the last epoch was tested on, and which epoch was the best."""
        tested = self.history[-1]["test_images"]
        return {
            "test_images": tested,
            "skipped": len(self.evaluation.splits.test) - tested,
            "best_epoch": self._best()["epoch"],
            "loss": self.history[-1]["loss"],
        }

    def _best(self) -> dict[str, Any]:
        return max(self.history, key=lambda record: float(record["top1"]))


def _require_divisible(batch_size: int, processes: int) -> None:
    if batch_size % processes:
        raise InputError(
            f"batch_size={batch_size} does not divide by {processes} processes; "
            f"set it to {max(1, batch_size // processes) * processes}."
        )


def _is_recorded(run: Path, details: dict[str, Any]) -> bool:
    """Whether a result has these details; earlier versions did not write all of the encoder's."""
    return any(details.items() <= record.get("details", {}).items() for record in read_results(run))
