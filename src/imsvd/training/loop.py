"""Pretraining, from a configuration to a run folder, to be read from top to bottom."""

from __future__ import annotations

import signal
import time
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from imsvd.checkpoints import (
    load_newest_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
    seed_random_state,
    seed_step,
)
from imsvd.config import Config
from imsvd.datasets import BadImage, ImageSource, Quarantine, open_source
from imsvd.distributed import any_rank, gather_lists, on_first_rank, together
from imsvd.encoder import save_encoder, saved_epoch
from imsvd.errors import InputError, Interrupted
from imsvd.methods import Method, MethodOutput, build_method
from imsvd.networks import build_backbone, synchronize_norms
from imsvd.progress import counted
from imsvd.runs import RunFolder
from imsvd.training.agreement import require_same_start, shared_quarantine
from imsvd.training.batches import Batches, EpochOrder
from imsvd.training.costs import peak_memory
from imsvd.training.display import TrainingDisplay
from imsvd.training.fitness import check_precision, check_view_sizes
from imsvd.training.hardware import launch
from imsvd.training.interruption import StopRequest
from imsvd.training.loading import build_batches
from imsvd.training.memory import out_of_memory_message
from imsvd.training.metrics import EpochMetrics, MetricsLog
from imsvd.training.online import OnlineKNN
from imsvd.training.optimizers import build_optimizer, learning_rate, set_learning_rate
from imsvd.training.processor import use_processor_well
from imsvd.views import Batch


def train(config: Config, run: RunFolder, console: Console) -> None:
    """Train until `config.training.epochs` are done, continuing what `run` already holds.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when everything has been saved.
    """
    if not run.has_saved:
        config.method.require_epochs(config.training.epochs)
    source = open_source(config.data.source, "train")
    run.begin(config)
    fabric = launch(config)
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    if fabric.world_size > 1 and fabric.device.type == "cpu":
        console.print("[yellow]BatchNorm is not synchronized between CPU processes.[/yellow]")
    order = EpochOrder(
        len(source), config.training.batch_size, config.seed, fabric.global_rank, fabric.world_size
    )
    trainer = Trainer(config, run, fabric, source, order)
    for complaint in together(trainer.resume):
        console.print(f"[yellow]{escape(complaint)}[/yellow] Using the checkpoint before it.")
    require_same_start(trainer.step, source.fingerprint())
    if fabric.is_global_zero:
        run.remove_leftovers()
    if trainer.step >= trainer.last_step:
        console.print(f"{run.path} is already trained: {counted(config.training.epochs, 'epoch')}.")
        return
    quarantine = shared_quarantine(source, config.data.bad_image_limit, run.bad_images)
    batches = build_batches(config, source, quarantine, order, fabric, console)
    try:
        with TrainingDisplay(
            console, config.training.epochs, config.training.batch_size, config.method.labels
        ) as display:
            trainer.fit(batches, quarantine, display)
    except torch.OutOfMemoryError as error:
        raise InputError(out_of_memory_message(config, len(source))) from error
    if quarantine.count:
        console.print(
            f"[yellow]{quarantine.count} unreadable images were replaced; {run.bad_images} lists them.[/yellow]"
        )


class Trainer:
    """The state of a run and the loop that moves it forward."""

    def __init__(
        self, config: Config, run: RunFolder, fabric: Fabric, source: ImageSource, order: EpochOrder
    ) -> None:
        self.config, self.run, self.fabric, self.source = config, run, fabric, source
        self.steps_per_epoch = order.steps_per_epoch
        self.last_step = config.training.epochs * order.steps_per_epoch
        self.step = 0
        self.seconds = 0.0
        seed_random_state(config.seed)
        method = build_method(config.method, build_backbone(config.backbone), len(source))
        check_view_sizes(method, config)
        check_precision(method, config, fabric.device)
        self.method = prepare(method, fabric)
        if fabric.device.type == "cpu":
            use_processor_well(self.method)
        self.model, self.optimizer = fabric.setup(self.method, build_optimizer(self.method, config))
        self.metrics = EpochMetrics()
        self.online = (
            OnlineKNN(config, source, fabric.device) if OnlineKNN.possible(config, source) else None
        )

    def fit(self, batches: Batches, quarantine: Quarantine, display: TrainingDisplay) -> None:
        """Run the remaining steps; on a stop signal save and raise `Interrupted`."""
        log = together(self._open_log)
        saved_at = time.monotonic()
        bad: list[BadImage] = []
        with StopRequest() as stop:
            self._begin_epoch(display)
            for batch in batches.steps(self.step, self.last_step):
                output = self._train_step(batch)
                display.step()
                bad += batch.bad
                epoch_ends = self.step % self.steps_per_epoch == 0
                if epoch_ends or self.fabric.world_size == 1:
                    # Every rank must learn of every bad image, so that all of them stop together.
                    quarantine.report(gather_lists(bad))
                    bad = []
                if epoch_ends:
                    self._end_epoch(output, log, display)
                    saved_at = time.monotonic()
                    if self.step < self.last_step:
                        self._begin_epoch(display)
                due = time.monotonic() - saved_at > 60 * self.config.compute.checkpoint_minutes
                # Ranks have clocks and signals of their own, but must save and stop together.
                if any_rank(due or bool(stop.signal_number), self.fabric.device):
                    quarantine.report(gather_lists(bad))
                    bad = []
                    self.save()
                    saved_at = time.monotonic()
                    if any_rank(bool(stop.signal_number), self.fabric.device):
                        display.say(
                            f"Stopped and saved at step {self.step:,}; run the same command to go on."
                        )
                        raise Interrupted(stop.signal_number or signal.SIGINT)
        if log is not None:
            log.close()

    def _open_log(self) -> MetricsLog | None:
        if not self.fabric.is_global_zero:
            return None
        return MetricsLog(self.run, self.config, self.epoch)

    def _train_step(self, batch: Batch) -> MethodOutput:
        lr = learning_rate(self.config, self.step, self.steps_per_epoch)
        set_learning_rate(self.optimizer, lr, self.config.peak_lr)
        self._seed_ranks_apart()
        output: MethodOutput = self.model(batch.views, batch.samples)
        self.optimizer.zero_grad()
        self.fabric.backward(output.loss)
        self.optimizer.step()
        self.step += 1
        self.method.after_step(self.step / self.last_step)
        with torch.no_grad():
            self.metrics.update(output, self.method.statistics(output.embedding))
        return output

    def _seed_ranks_apart(self) -> None:
        """Let ranks draw different dropout, from the step alone, for a checkpoint has one rank's state."""
        if self.fabric.world_size > 1:
            seed_step(self.config.seed, self.step, self.fabric.global_rank)

    @property
    def epoch(self) -> int:
        """How many epochs are complete."""
        return self.step // self.steps_per_epoch

    def _begin_epoch(self, display: TrainingDisplay) -> None:
        if self.step % self.steps_per_epoch == 0:
            self.method.begin_epoch(self.epoch)
        self._began = time.monotonic()
        self._began_at_step = self.step
        display.begin_epoch(self.epoch + 1, self.step % self.steps_per_epoch, self.steps_per_epoch)

    def _end_epoch(
        self, output: MethodOutput, log: MetricsLog | None, display: TrainingDisplay
    ) -> None:
        """Measure, log and save what the epoch has brought."""
        self._refuse_divergence()
        seconds = time.monotonic() - self._began
        steps = self.step - self._began_at_step
        self.seconds += seconds
        bounds = self.method.bounds(self.config.training.batch_size)
        record: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            **self.metrics.summarize(self.method, output.features),
            "images_per_second": steps * self.config.training.batch_size / seconds,
            "seconds": seconds,
            "total_seconds": self.seconds,
            "peak_memory": peak_memory(),
        }
        self.metrics = EpochMetrics()
        on_first_rank(lambda: self._check_and_log(record | {"bounds": bounds}, log, display))
        self._began = time.monotonic()  # checks are no training time
        self.save()

    def _check_and_log(
        self, record: dict[str, Any], log: MetricsLog | None, display: TrainingDisplay
    ) -> None:
        if self.online is not None and self.online.due(self.epoch):
            record["knn"] = self.online(self.method.backbone)
        if log is not None:
            log.write(record)
        display.end_epoch(record, record["bounds"])

    def save(self) -> None:
        """Write a checkpoint and, after a whole epoch, the encoder; one process writes for all."""
        self._refuse_divergence()
        on_first_rank(self._write)

    def _write(self) -> None:
        # The checkpoint comes last: a run that it shows to be finished has its encoder.
        if self.step % self.steps_per_epoch == 0:
            save_encoder(self.run, self.config, self._weights(), self.epoch)
        save_checkpoint(self.run.checkpoints, self.step, self._state())

    def resume(self) -> list[str]:
        """Load the newest good checkpoint, if any; return what was wrong with newer ones."""
        state, complaints = load_newest_checkpoint(self.run.checkpoints)
        if state is None:
            if complaints:
                raise InputError(
                    f"{complaints[0]} No good one is left; remove {self.run.path} to start again."
                )
            if saved_epoch(self.run) == self.config.training.epochs:
                self.step = self.last_step  # it is trained, and its checkpoints were deleted
            return []
        if state["data"] != self.source.fingerprint():
            raise InputError(
                f"the images in {self.config.data.source} are not those {self.run.path} was trained on so far; "
                "restore them to resume, or give another --out for a new run."
            )
        self.step, self.seconds = state["step"], state["seconds"]
        self.method.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.metrics.load_state_dict(state["metrics"])
        if state["precision"]:  # empty where gradients were not scaled
            self.fabric.strategy.precision.load_state_dict(state["precision"])
        restore_random_state(state["random"])
        return complaints

    def _refuse_divergence(self) -> None:
        """Raise rather than save weights that are no longer numbers."""
        if any_rank(not self.metrics.finite(), self.fabric.device):
            raise InputError(
                f"the loss is no longer finite at step {self.step:,}; the run is kept as it was saved before "
                "— lower optimizer.lr or lengthen optimizer.warmup_epochs, in a new --out."
            )

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds + time.monotonic() - self._began,
            "data": self.source.fingerprint(),
            "weights": self._weights(),
            "optimizer": self.optimizer.state_dict(),
            "metrics": self.metrics.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "random": random_state(),
        }

    def _weights(self) -> dict[str, Tensor]:
        return dict(self.method.state_dict())


def prepare(method: Method, fabric: Fabric) -> Method:
    """Lay convolution weights out for speed and share BatchNorm statistics between GPUs."""
    method = method.to(memory_format=torch.channels_last)
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        synchronized = synchronize_norms(method)
        assert isinstance(synchronized, Method)
        return synchronized
    return method
