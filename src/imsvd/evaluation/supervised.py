"""Evaluation by training a classifier: the one loop of all protocols that need labels.

Batches, launching, checkpoints and signals are those of pretraining. What is trained, how long and
on which images is in `evaluation.classification`.
"""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from rich.console import Console
from rich.markup import escape

from imsvd.checkpoints import (
    load_newest_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
    seed_random_state,
)
from imsvd.datasets import BadImage
from imsvd.distributed import (
    any_rank,
    gather_lists,
    mean_over_ranks,
    on_first_rank,
    together,
)
from imsvd.encoder import encoder_details
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation import chance
from imsvd.evaluation.classifier import Classifier, Evaluation, HeldOutImages, build_optimizer
from imsvd.evaluation.results import append_result, read_results
from imsvd.files import remove_leftovers, write_atomically
from imsvd.networks import synchronize_norms
from imsvd.progress import progress_bar
from imsvd.training.agreement import require_same_start, shared_quarantine
from imsvd.training.batches import Batches, EpochOrder
from imsvd.training.hardware import launch
from imsvd.training.interruption import StopRequest
from imsvd.training.loading import build_batches
from imsvd.views import Batch

IGNORED = -100
"""The label that `cross_entropy` passes over: of an image that another one replaces."""


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
    settings, splits = evaluation.settings, evaluation.splits
    fabric = launch(evaluation.pretraining_config())
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    _require_divisible(settings.batch_size, fabric.world_size)
    if fabric.world_size > 1 and fabric.device.type == "cpu" and not settings.frozen:
        console.print("[yellow]BatchNorm is not synchronized between CPU processes.[/yellow]")
    training = ClassifierTraining(evaluation, folder, fabric)
    for complaint in together(training.resume):
        console.print(f"[yellow]{escape(complaint)}[/yellow] Using the checkpoint before it.")
    require_same_start(training.step, splits.train.fingerprint())
    if training.step < training.last_step:
        training.prepare(console)
        training.fit(console)
    else:
        console.print(f"Already evaluated: {escape(str(folder))}", highlight=False, soft_wrap=True)
    metrics = training.metrics()
    on_first_rank(lambda: _record(training, run, data))
    return metrics


def _record(training: ClassifierTraining, run: Path, data: str) -> None:
    """Append the result to results.jsonl, once."""
    evaluation, folder = training.evaluation, training.folder
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


class ClassifierTraining:
    """The state of a classifier in training and the loop that moves it forward."""

    def __init__(self, evaluation: Evaluation, folder: Path, fabric: Fabric) -> None:
        self.evaluation, self.folder, self.fabric = evaluation, folder, fabric
        settings, splits = evaluation.settings, evaluation.splits
        self.order = EpochOrder(
            len(splits.train),
            settings.batch_size,
            settings.seed,
            fabric.global_rank,
            fabric.world_size,
        )
        self.steps_per_epoch = self.order.steps_per_epoch
        self.last_step = settings.epochs * self.steps_per_epoch
        self.step = 0
        self.history: list[dict[str, Any]] = []
        seed_random_state(settings.seed)
        self.network = _on_device(
            Classifier(evaluation.encoder, len(splits.class_names), frozen=settings.frozen), fabric
        )
        self.model, self.optimizer = fabric.setup(
            self.network, build_optimizer(self.network, settings)
        )
        self.labels = splits.train_labels.to(fabric.device, copy=True)
        self.loss = torch.zeros((), device=fabric.device)

    def prepare(self, console: Console) -> None:
        """Open the images to train and to test on."""
        evaluation, fabric = self.evaluation, self.fabric
        train, config = evaluation.splits.train, evaluation.pretraining_config()
        on_first_rank(self._make_room)
        self.quarantine = shared_quarantine(
            train, evaluation.settings.bad_image_limit, self.folder / "bad_images.jsonl"
        )
        self.batches: Batches = build_batches(
            config, train, self.quarantine, self.order, fabric, console
        )
        replaced = self.quarantine.replacements() != torch.arange(len(train))
        self.labels[replaced.to(fabric.device)] = IGNORED
        self.test = HeldOutImages(evaluation.splits.test, evaluation.encoder.description, config)

    def _make_room(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder, self.folder / "checkpoints"):
            remove_leftovers(folder)

    def fit(self, console: Console) -> None:
        """Run the remaining steps; on a stop signal save and raise `Interrupted`."""
        minutes = self.evaluation.settings.compute.checkpoint_minutes
        saved_at = time.monotonic()
        bad: list[BadImage] = []
        with progress_bar(console) as bar, StopRequest() as stop:
            task = bar.add_task(self.evaluation.protocol, total=self.last_step, completed=self.step)
            for batch in self.batches.steps(self.step, self.last_step):
                self._train_step(batch)
                bar.advance(task)
                bad += batch.bad
                epoch_ends = self.step % self.steps_per_epoch == 0
                if epoch_ends or self.fabric.world_size == 1:
                    # Every rank must learn of every bad image, so that all of them stop together.
                    self.quarantine.report(gather_lists(bad))
                    bad = []
                if epoch_ends:
                    self._end_epoch()
                    bar.console.print(_line(self.history[-1], self.epochs), highlight=False)
                due = time.monotonic() - saved_at > 60 * minutes
                # Ranks have clocks and signals of their own, but must save and stop together.
                if epoch_ends or any_rank(due or bool(stop.signal_number), self.fabric.device):
                    self.quarantine.report(gather_lists(bad))
                    bad = []
                    self.save()
                    saved_at = time.monotonic()
                    if any_rank(bool(stop.signal_number), self.fabric.device):
                        bar.console.print(
                            f"Stopped and saved at step {self.step:,}; run the same command to go on."
                        )
                        raise Interrupted(stop.signal_number or signal.SIGINT)

    @property
    def epochs(self) -> int:
        """How many epochs there are in all."""
        return self.evaluation.settings.epochs

    def _train_step(self, batch: Batch) -> None:
        factor = self.evaluation.settings.rate_factor(self.step // self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
        for item in batch.bad:
            self.labels[item.index] = IGNORED
        targets = self.labels[batch.samples]
        logits = self.model(batch.views[0])
        # Divided by all images, so that ranks count alike however many they had to ignore.
        loss = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
        loss = loss / len(targets)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.optimizer.step()
        self.step += 1
        self.loss += loss.detach()

    def _end_epoch(self) -> None:
        """Test, and remember what the epoch has brought."""
        loss = float(mean_over_ranks({"loss": self.loss / self.steps_per_epoch})["loss"])
        self._refuse_divergence(loss)
        self.loss.zero_()
        rates = {group["name"]: group["lr"] for group in self.optimizer.param_groups}
        accuracies = self.test.measure(self.network, self.fabric)
        epoch = self.step // self.steps_per_epoch
        self.history.append({"epoch": epoch, "loss": loss, **rates, **accuracies})

    def _refuse_divergence(self, loss: float) -> None:
        """Raise rather than save weights that are no longer numbers."""
        settings = self.evaluation.settings
        rates = f"head_lr={settings.head_lr:g}"
        if not settings.frozen:
            rates += f" or backbone_lr={settings.backbone_lr:g}"
        if not math.isfinite(loss):
            raise InputError(
                f"the loss is no longer finite at step {self.step:,}; lower {rates} with --set."
            )

    def metrics(self) -> dict[str, float]:
        """Accuracies in percent after the last epoch and, so labeled, after the best one."""
        prefix = self.evaluation.protocol.replace("-", "_")
        last = self.history[-1]
        named = {f"{prefix}_{name}": last[name] for name in ("top1", "top5") if name in last}
        return named | {f"{prefix}_best_epoch_top1": self._best()["top1"]}

    def details(self) -> dict[str, Any]:
        """What the last epoch was tested on, and which epoch was the best on the same images."""
        tested = self.history[-1]["test_images"]
        skipped = len(self.evaluation.splits.test) - tested
        return {
            "test_images": tested,
            "skipped": skipped,
            "best_epoch": self._best()["epoch"],
            "loss": self.history[-1]["loss"],
        }

    def _best(self) -> dict[str, Any]:
        return max(self.history, key=lambda record: float(record["top1"]))

    def save(self) -> None:
        """Write a checkpoint and the epochs so far; one process writes for all."""
        on_first_rank(self._write)

    def _write(self) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in self.history)
        write_atomically(self.folder / "metrics.jsonl", lines.encode())
        state = {
            "step": self.step,
            "history": self.history,
            "weights": dict(self.network.trained.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "loss": self.loss,
            "precision": self.fabric.strategy.precision.state_dict(),
            "random": random_state(),
        }
        save_checkpoint(self.folder / "checkpoints", self.step, state)

    def resume(self) -> list[str]:
        """Load the newest good checkpoint, if any; return what was wrong with newer ones."""
        state, complaints = load_newest_checkpoint(self.folder / "checkpoints")
        if state is None:
            if complaints:
                raise InputError(
                    f"{complaints[0]} No good one is left; remove {self.folder} to start again."
                )
            return []
        self.step, self.history = state["step"], state["history"]
        self.network.trained.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss = state["loss"].to(self.fabric.device)
        if state["precision"]:  # empty where gradients were not scaled
            self.fabric.strategy.precision.load_state_dict(state["precision"])
        restore_random_state(state["random"])
        return complaints


def _on_device(network: Classifier, fabric: Fabric) -> Classifier:
    """Lay convolution weights out for speed and share BatchNorm statistics between GPUs."""
    network = network.to(memory_format=torch.channels_last)
    if fabric.world_size > 1 and fabric.device.type == "cuda" and not network.frozen:
        network.backbone = synchronize_norms(network.backbone)
    return network


def _require_divisible(batch_size: int, processes: int) -> None:
    if batch_size % processes:
        raise InputError(
            f"batch_size={batch_size} does not divide by {processes} processes; "
            f"set it to {max(1, batch_size // processes) * processes}."
        )


def _is_recorded(run: Path, details: dict[str, Any]) -> bool:
    """Whether a result has these details; earlier versions did not write all of the encoder's."""
    return any(details.items() <= record.get("details", {}).items() for record in read_results(run))


def _line(record: dict[str, Any], epochs: int) -> str:
    return (
        f"epoch {record['epoch']}/{epochs}   loss {record['loss']:.3f}   "
        f"test top-1 {record['top1']:.2f} %"
    )
