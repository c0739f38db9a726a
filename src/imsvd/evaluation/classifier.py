"""Evaluation by training a linear classifier on a backbone: network, training, testing, recording.

`classification` has the settings and images of the protocols; the engine's loop runs the training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn

from imsvd.checkpoints import seed_random_state
from imsvd.config import ComputeSettings
from imsvd.datasets import BadImage, ImageSource, Quarantine, Subset, load_into_memory
from imsvd.datasets.sources import hash_listing
from imsvd.distributed import (
    all_gather,
    all_reduce_sum,
    mean_over_ranks,
    on_first_rank,
    own_row,
    own_slice,
    together,
)
from imsvd.encoder import Encoder, EncoderDescription, encoder_details
from imsvd.engine.batches import EpochOrder, build_batches
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import launch, lay_out, worker_count
from imsvd.engine.loop import StepBar, Training, TrainingPlan, shared_quarantine
from imsvd.errors import InputError
from imsvd.evaluation import extract_features
from imsvd.evaluation.classification import ClassificationSettings, LabeledSplits, count_hits
from imsvd.evaluation.features import chance
from imsvd.evaluation.results import append_result
from imsvd.files import write_atomically
from imsvd.runs import read_results
from imsvd.views import Batch, ViewSettings, ViewsSettings

IGNORED = -100
"""Label that `cross_entropy` skips, given to images that replace unreadable ones."""


class Evaluation(NamedTuple):
    """One protocol with its encoder, labeled images and settings.

    Attributes:
        protocol: name of the protocol, which also names its folder and metrics.
        encoder: encoder to evaluate.
        splits: labeled images.
        settings: settings of the training.
        labels: how the labeled images were chosen, if not all labels are used.
    """

    protocol: str
    encoder: Encoder
    splits: LabeledSplits
    settings: ClassificationSettings
    labels: str = ""

    def folder(self, run: Path) -> Path:
        """Return its folder below `run`, named by a hash of everything that determines the result."""
        weights = [
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for value in self.encoder.backbone.state_dict().values()
        ]
        settings = self.settings.model_dump_json(exclude={"compute"})
        sources = (self.splits.train.fingerprint(), self.splits.test.fingerprint())
        texts = [text.encode() for text in (self.protocol, settings, *sources)]
        return run / "evaluations" / f"{self.protocol}-{hash_listing([*texts, *weights])}"

    @property
    def views(self) -> ViewsSettings:
        """One view: a random crop and a flip, at the encoder's size and with its normalization."""
        description = self.encoder.description
        view = ViewSettings(
            size=description.size,
            crop_scale=self.settings.crop_scale,
            jitter_probability=0,
            gray_probability=0,
            mean=description.mean,
            std=description.std,
        )
        # Not validated: pretraining needs at least two views, a classifier one.
        return ViewsSettings.model_construct(views=(view,))


def evaluate_by_training(
    evaluation: Evaluation, run: Path, data: str, console: Console
) -> dict[str, float]:
    """Train a classifier, or resume it; append the accuracies to results.jsonl and return them.

    Args:
        evaluation: protocol, encoder, images and settings.
        run: folder of results.jsonl and evaluations/.
        data: the images, as the user named them.
        console: where to show progress.

    Raises:
        Interrupted: on Ctrl-C or SIGTERM, after saving.
    """
    folder = evaluation.folder(run)
    settings = evaluation.settings
    fabric = launch(settings.compute)
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    _require_divisible(settings.batch_size, fabric.world_size)
    if fabric.world_size > 1 and fabric.device.type == "cpu" and not settings.frozen:
        console.print("[yellow]BatchNorm is not synchronized across CPU processes.[/yellow]")
    training = ClassifierTraining(evaluation, folder, fabric)
    if not training.fit(console):
        console.print(f"Already evaluated: {escape(str(folder))}", highlight=False, soft_wrap=True)
    metrics = training.metrics()
    on_first_rank(lambda: _record(training, run, data))
    return metrics


def _record(training: ClassifierTraining, run: Path, data: str) -> None:
    """Append the result to results.jsonl, unless it is already there."""
    evaluation, folder = training.evaluation, training.place
    recorded = [record.get("details", {}).get("evaluation") for record in read_results(run)]
    if folder.name in recorded:
        return
    splits, settings = evaluation.splits, evaluation.settings
    details = training.details() | encoder_details(evaluation.encoder)
    details |= {
        "train_images": len(splits.train),
        "chance": chance(splits.test_labels),
        "evaluation": folder.name,
        "settings": settings.model_dump(mode="json", exclude={"compute"}),
    }
    if evaluation.labels:
        details["labels"] = evaluation.labels
    append_result(run, evaluation.protocol, training.metrics(), data=data, details=details)


def _require_divisible(batch_size: int, processes: int) -> None:
    if batch_size % processes:
        raise InputError(
            f"batch_size={batch_size} does not divide by {processes} processes; "
            f"set it to {max(1, batch_size // processes) * processes}."
        )


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
            classifier_optimizer(self.network, settings),
            TrainingPlan(
                place=folder,
                checkpoints=folder / "checkpoints",
                images=splits.train.fingerprint(),
                epochs=settings.epochs,
                steps_per_epoch=self.order.steps_per_epoch,
                seed=settings.seed,
                checkpoint_minutes=settings.compute.checkpoint_minutes,
                identity={"evaluation": folder.name},
            ),
        )
        self.trained = self.network.trained
        self.labels = splits.train_labels.to(fabric.device, copy=True)
        self.epoch_loss = torch.zeros((), device=fabric.device)
        self._epoch_losses: Tensor | None = None  # of all ranks, for a checkpoint

    def prepare(self, console: Console) -> None:
        """Open the training and test images."""
        evaluation, fabric = self.evaluation, self.fabric
        settings, train = evaluation.settings, evaluation.splits.train
        on_first_rank(lambda: self.place.mkdir(parents=True, exist_ok=True))
        self.quarantine = shared_quarantine(
            train, settings.bad_image_limit, self.place, "bad_image_limit"
        )
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
        """Scale every group's peak rate by the factor of the epoch."""
        factor = self.evaluation.settings.rate_factor(self.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]

    def loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy without the images that replace unreadable ones."""
        for item in batch.bad:
            self.labels[item.index] = IGNORED
        targets = self.labels[batch.samples]
        logits = self.model(batch.views[0])
        loss = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
        # Dividing by all images gives ranks equal weight, however many images they ignore.
        loss = loss / len(targets)
        self.epoch_loss += loss.detach()
        self._epoch_losses = None
        return loss

    def end_epoch(self) -> None:
        """Test the classifier and store loss and accuracies."""
        loss = float(mean_over_ranks({"loss": self.epoch_loss / self.steps_per_epoch})["loss"])
        self.epoch_loss.zero_()
        self._epoch_losses = None
        rates = {group["name"]: group["lr"] for group in self.optimizer.param_groups}
        accuracies = self.test.measure(self.network, self.fabric)
        self.history.append({"epoch": self.epoch, "loss": loss, **rates, **accuracies})
        self._bar.say(
            f"epoch {self.epoch}/{self.evaluation.settings.epochs}   loss {loss:.3f}   "
            f"test top-1 {accuracies['top1']:.2f} %"
        )

    def write_outputs(self) -> None:
        """Write one line per finished epoch to metrics.jsonl."""
        lines = "".join(json.dumps(record) + "\n" for record in self.history)
        write_atomically(self.place / "metrics.jsonl", lines.encode())

    def before_saving(self) -> None:
        """Collect the losses that ranks have added up in the current epoch."""
        self._epoch_losses = all_gather(self.epoch_loss[None])

    def extra_state(self) -> dict[str, Any]:
        """Return the finished epochs and the loss of the current one, with a row for every rank."""
        rows = self.epoch_loss[None] if self._epoch_losses is None else self._epoch_losses
        return {"history": self.history, "epoch_loss": rows}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore `extra_state`."""
        self.history = state["history"]
        self.epoch_loss = own_row(state["epoch_loss"]).to(self.fabric.device)

    @property
    def divergence_remedy(self) -> str:
        """Advice for a loss that is no longer finite."""
        settings = self.evaluation.settings
        rates = f"head_lr={settings.head_lr:g}"
        if not settings.frozen:
            rates += f" or backbone_lr={settings.backbone_lr:g}"
        return f"lower {rates} with --set"

    def metrics(self) -> dict[str, float]:
        """Return the accuracies in percent of the last epoch, and the best epoch's top-1 accuracy."""
        prefix = self.evaluation.protocol.replace("-", "_")
        last = self.history[-1]
        named = {f"{prefix}_{name}": last[name] for name in ("top1", "top5") if name in last}
        return named | {f"{prefix}_best_epoch_top1": self._best()["top1"]}

    def details(self) -> dict[str, Any]:
        """Return the number of test images, the best epoch and the last loss."""
        tested = self.history[-1]["test_images"]
        return {
            "test_images": tested,
            "skipped": len(self.evaluation.splits.test) - tested,
            "best_epoch": self._best()["epoch"],
            "loss": self.history[-1]["loss"],
        }

    def _best(self) -> dict[str, Any]:
        return max(self.history, key=lambda record: float(record["top1"]))


class Classifier(nn.Module):
    """Maps normalized images (batch, 3, size, size) to logits (batch, classes).

    A frozen backbone gets no gradients and stays in evaluation mode, which fixes its weights and the
    statistics of its norms. As in MoCo and VICReg, the head's initial weights are N(0, 0.01²).
    """

    def __init__(self, encoder: Encoder, num_classes: int, *, frozen: bool) -> None:
        super().__init__()
        if not frozen and next(encoder.backbone.parameters(), None) is None:
            raise InputError(
                "an ONNX encoder has no weights to train; use a protocol that leaves it as it is, such as "
                "`imsvd evaluate linear`."
            )
        self.backbone = encoder.backbone.requires_grad_(not frozen)
        self.head = nn.Linear(encoder.num_features, num_classes)
        self.frozen = frozen
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return logits in float32, whatever the backbone's precision."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = self.backbone(images)
        with torch.autocast(images.device.type, enabled=False):
            logits: Tensor = self.head(features.float())
        return logits

    @property
    def trained(self) -> nn.Module:
        """The trained part of the network, which checkpoints save."""
        return self.head if self.frozen else self


def classifier_optimizer(
    network: Classifier, settings: ClassificationSettings
) -> torch.optim.Optimizer:
    """Build SGD with separate rates for head and backbone; a frozen backbone is left out."""
    rates = {"head": settings.head_lr, "backbone": settings.backbone_lr}
    modules = {"head": network.head, "backbone": network.backbone}
    groups = [
        {
            "params": list(module.parameters()),
            "name": f"{name}_lr",
            "peak_lr": rates[name] * settings.batch_size / 256,
        }
        for name, module in modules.items()
        if name == "head" or not settings.frozen
    ]
    return torch.optim.SGD(
        groups, lr=1.0, momentum=settings.momentum, weight_decay=settings.weight_decay
    )


class HeldOutImages:
    """This rank's share of the test images; small images are kept in memory."""

    def __init__(
        self, source: ImageSource, description: EncoderDescription, compute: ComputeSettings
    ) -> None:
        self.description, self.compute = description, compute
        own = own_slice(len(source))
        self.source = Subset(source, range(own.start, own.stop))
        self.images = together(lambda: _small_images(self.source) if len(self.source) else None)

    def measure(self, network: nn.Module, fabric: Fabric) -> dict[str, Any]:
        """Return accuracies in percent over the readable test images of all ranks, and their number.

        "top5" needs more than five classes.
        """
        counts = together(lambda: self._counts(network, fabric) if len(self.source) else [0, 0, 0])
        total = all_reduce_sum(torch.tensor(counts, device=fabric.device))
        top1, top5, count = total.tolist()
        measured: dict[str, Any] = {"top1": 100 * top1 / count}
        if len(self.source.classes) > 5:
            measured["top5"] = 100 * top5 / count
        return measured | {"test_images": count}

    def _counts(self, network: nn.Module, fabric: Fabric) -> list[int]:
        """Count top-1 hits, top-5 hits and images in this rank's share."""
        in_memory = self.images is not None
        with fabric.autocast():
            found = extract_features(
                network,
                self.source,
                size=self.description.size,
                mean=self.description.mean,
                std=self.description.std,
                device=fabric.device,
                workers=0 if in_memory else worker_count(self.compute, fabric),
                images=self.images,
            )
        assert found.labels is not None
        hits = [count_hits(found.features, found.labels, most) for most in (1, 5)]
        return [*hits, len(found.features)]


def _small_images(source: ImageSource) -> Tensor | None:
    """Return all images as one tensor if they are small, of one size and readable, else None."""
    quarantine = Quarantine(source, limit=1)
    images = load_into_memory(source, quarantine)
    return None if quarantine.count else images
