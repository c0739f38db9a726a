"""Pretraining, from a configuration to a run folder, to be read from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from rich.console import Console
from torch import Tensor, nn

from imsvd.config import Config
from imsvd.datasets import BadImage, ImageSource, open_source
from imsvd.distributed import on_first_rank, together
from imsvd.encoder import save_encoder, saved_epoch
from imsvd.engine.batches import EpochOrder, build_batches
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import launch, lay_out, use_processor_well
from imsvd.engine.loop import Training, TrainingPlan, shared_quarantine
from imsvd.methods import Method, MethodOutput, build_method
from imsvd.networks import feature_width
from imsvd.pretraining.code import LABELS as CODE_LABELS
from imsvd.pretraining.code import CodeTraining
from imsvd.pretraining.display import TrainingDisplay
from imsvd.pretraining.fitness import check_precision, check_view_sizes, out_of_memory_message
from imsvd.pretraining.improvement import SelfRetrieval, hold_out
from imsvd.pretraining.initial import initial_backbone
from imsvd.pretraining.metrics import EpochMetrics, MetricsLog, peak_memory
from imsvd.pretraining.online_knn import OnlineKNN
from imsvd.pretraining.optimizers import build_optimizer, learning_rate, set_learning_rate
from imsvd.progress import counted, progress_bar
from imsvd.runs import RunFolder, decisive_settings
from imsvd.views import Batch


def train(config: Config, run: RunFolder, console: Console) -> None:
    """Train until `config.training.epochs` are done, continuing the run that `run` may hold.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when everything has been saved.
    """
    if not run.has_saved:
        config.method.require_epochs(config.training.epochs)
    source = open_source(config.data.source, "train")
    run.begin(config)
    fabric = launch(config.compute)
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    if fabric.world_size > 1 and fabric.device.type == "cpu":
        console.print("[yellow]BatchNorm is not synchronized between CPU processes.[/yellow]")
    if not Pretraining(config, run, fabric, source).fit(console):
        console.print(f"{run.path} is already trained: {counted(config.training.epochs, 'epoch')}.")


_LESS_THAN_THE_CODE = ("share_above_0.99", "dead_units")
"""Columns of IMSVD's own variables that leave room for those of a code beside them."""


def _identity(config: Config) -> dict[str, Any]:
    """Return what tells runs apart, without places, which may be moved and renamed."""
    places = ("data.", "frozen.encoder", "init.")
    settings = decisive_settings(config)
    return {key: value for key, value in settings.items() if not key.startswith(places)}


class Views(Protocol):
    """What a method needs of a batch."""

    @property
    def views(self) -> list[Tensor]:
        """One tensor per view."""

    @property
    def samples(self) -> Tensor:
        """Positions of the images in the data, (batch,)."""


V = TypeVar("V", bound=Views)


class MethodTraining(Training[V]):
    """A method in training, and what it leaves in the run folder: logs, time, and its encoder.

    Args:
        config: of the run.
        run: the folder.
        fabric: launched.
        method: laid out for the device.
        images: fingerprint of the images.
        steps_per_epoch: after how many steps the run is logged and saved.
    """

    can_be_replayed = True
    has_knn = False
    """Whether the table of epochs has a column for kNN checks."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        fabric: Fabric,
        method: Method,
        images: str,
        steps_per_epoch: int,
    ) -> None:
        self.config, self.run, self.method = config, run, method
        super().__init__(
            fabric,
            method,
            build_optimizer(method, config),
            TrainingPlan(
                place=run.path,
                checkpoints=run.checkpoints,
                images=images,
                epochs=config.training.epochs,
                steps_per_epoch=steps_per_epoch,
                seed=config.seed,
                checkpoint_minutes=config.compute.checkpoint_minutes,
                identity=_identity(config),
            ),
        )
        self.seconds, self._began = 0.0, time.monotonic()
        self.metrics = EpochMetrics()

    def prepare(self, console: Console) -> None:
        """Open the logs."""
        del console
        self._log = together(self._open_log)

    def _open_log(self) -> MetricsLog | None:
        if not self.fabric.is_global_zero:
            return None
        return MetricsLog(self.run, self.config, self.epoch)

    @property
    def labels(self) -> Mapping[str, str]:
        """Column titles of the table of epochs."""
        return self.config.method.labels

    def display(self, console: Console) -> TrainingDisplay:
        """Return the table of epochs with a bar below it."""
        training = self.config.training
        self._display = TrainingDisplay(
            console, training.epochs, training.batch_size, self.labels, knn=self.has_knn
        )
        return self._display

    def set_learning_rates(self) -> None:
        """Follow warm-up and cosine; some modules keep the peak."""
        lr = learning_rate(self.config, self.step, self.steps_per_epoch)
        set_learning_rate(self.optimizer, lr, self.config.peak_lr)

    def loss(self, batch: V) -> Tensor:
        """Return the method's loss of all views."""
        output: MethodOutput = self.model(batch.views, batch.samples)
        self._output = output
        return output.loss

    def after_step(self) -> None:
        """Update what the method does not learn by gradients, and the means of the epoch."""
        self.method.after_step(self.step / self.last_step)
        with torch.no_grad():
            self.metrics.update(self._output, self.method.statistics(self._output.embedding))

    def begin_epoch(self) -> None:
        """Refresh what the method keeps fixed over an epoch, and start the clock."""
        if self.step % self.steps_per_epoch == 0:
            self.method.begin_epoch(self.epoch)
        self._began = time.monotonic()
        self._began_at_step = self.step
        done = self.step % self.steps_per_epoch
        self._display.begin_epoch(self.epoch + 1, done, self.steps_per_epoch)

    def end_epoch(self) -> None:
        """Log the means of the epoch and what `check` finds."""
        seconds = time.monotonic() - self._began
        images = (self.step - self._began_at_step) * self.config.training.batch_size
        self.seconds += seconds
        record: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            **self.measure_epoch(),
            "images_per_second": images / seconds,
            "seconds": seconds,
            "total_seconds": self.seconds,
            "peak_memory": peak_memory(),
            "bounds": self.method.bounds(self.config.training.batch_size),
        }
        self.metrics = EpochMetrics()
        on_first_rank(lambda: self._check_and_log(record))
        self._began = time.monotonic()  # the check is not training time

    def measure_epoch(self) -> dict[str, Any]:
        """Return the means of the epoch; all ranks call this."""
        return self.metrics.summarize(self.method, self.ranked_features())

    def ranked_features(self) -> Tensor | None:
        """Return the features whose effective rank is logged, if any."""
        return None

    def check(self, record: dict[str, Any]) -> None:
        """Add what is measured at the end of an epoch; only the first rank calls this."""

    def _check_and_log(self, record: dict[str, Any]) -> None:
        self.check(record)
        if self._log is not None:
            self._log.write(record)
        self._display.end_epoch(record, record["bounds"])

    def before_saving(self) -> None:
        """Collect the sums of an unfinished epoch."""
        self.metrics.gather()

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
        return "lower optimizer.lr or lengthen optimizer.warmup_epochs, in a new --out"

    def close(self) -> None:
        """Close the logs."""
        if self._log is not None:
            self._log.close()


class Pretraining(MethodTraining[Batch]):
    """A method in training on the views of unlabeled images."""

    has_knn = True

    def __init__(self, config: Config, run: RunFolder, fabric: Fabric, source: ImageSource) -> None:
        source, held_out = hold_out(config, source)
        self.source = source
        self.order = EpochOrder(
            len(source),
            config.training.batch_size,
            config.seed,
            fabric.global_rank,
            fabric.world_size,
        )
        method = build_method(config.method, initial_backbone(config), len(source))
        check_view_sizes(method, config)
        check_precision(method, config, fabric.device)
        method = lay_out(method, fabric)
        if fabric.device.type == "cpu":
            use_processor_well(method)
        if config.compute.compile:
            method.backbone.compile()
        images, steps = source.fingerprint(), self.order.steps_per_epoch
        super().__init__(config, run, fabric, method, images, steps)
        # Ranks must draw different dropout, and a checkpoint holds the random state of one of them.
        self.seed_every_step = fabric.world_size > 1
        self.knn = OnlineKNN.where_possible(config, source, fabric)
        width = feature_width(method.backbone)
        self.code = (
            None if config.code is None else CodeTraining(config.code, config, width, fabric)
        )
        self.retrieval = None if held_out is None else SelfRetrieval(config, held_out, fabric)
        self.before: dict[str, float] = {}

    def prepare(self, console: Console) -> None:
        """Open the images and the logs; measure pretrained weights before their first step."""
        config = self.config
        if config.init is not None and self.step == 0:
            self._measure_before(console)
        self.quarantine = shared_quarantine(self.source, config.data.bad_image_limit, self.run.path)
        self._batches = build_batches(
            self.source,
            self.quarantine,
            self.order,
            config.views,
            config.seed,
            config.compute,
            self.fabric,
            console,
        )
        super().prepare(console)

    def _measure_before(self, console: Console) -> None:
        measure = self.knn or self.retrieval
        if measure is None:
            return

        def run() -> None:
            with progress_bar(console) as bar:
                task = bar.add_task("measuring the pretrained encoder", total=None)
                measured = measure(
                    self.method.backbone,
                    lambda done, total: bar.update(task, completed=done, total=total),
                )
            self.before = {**measured, "images": measure.images}

        run() if self.knn is not None else on_first_rank(run)

    def before_saving(self) -> None:
        """Collect the sums of an unfinished epoch, those of the code as well."""
        super().before_saving()
        if self.code is not None:
            self.code.gather()

    def extra_state(self) -> dict[str, Any]:
        """Return the time spent, the means of an unfinished epoch, and what was measured before."""
        state = super().extra_state() | ({"before": self.before} if self.before else {})
        return state | ({"code": self.code.state_dict()} if self.code else {})

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Continue the time and the means."""
        super().load_extra_state(state)
        self.before = state.get("before", {})
        if self.code is not None:
            self.code.load_state_dict(state["code"])

    def batches(self, steps: range) -> Iterable[Batch]:
        """Return this rank's views of `steps`."""
        return self._batches.steps(steps.start, steps.stop)

    def bad_images(self, batch: Batch) -> list[BadImage]:
        """Return the unreadable images that were replaced in `batch`."""
        return batch.bad

    def ranked_features(self) -> Tensor:
        """Return the features of the last batch."""
        return self._output.features[0]

    @property
    def labels(self) -> Mapping[str, str]:
        """Column titles of the table of epochs."""
        return {**super().labels, **({} if self.code is None else CODE_LABELS)}

    def after_step(self) -> None:
        """Move the code head too, by the features that the method has just used."""
        super().after_step()
        if self.code is not None:
            lr = learning_rate(self.config, self.step - 1, self.steps_per_epoch)
            self.code.step(self._output.features, lr, self.step / self.last_step)

    def measure_epoch(self) -> dict[str, Any]:
        """Return the means of the epoch, those of the code included, and kNN accuracy if it is due."""
        record = super().measure_epoch()
        if self.knn is not None and self.knn.due(self.epoch):
            record["knn"] = self.knn(self.method.backbone)
        if self.code is not None:
            for name in _LESS_THAN_THE_CODE:
                record["health"].pop(name, None)
            record["health"] = self.code.summarize() | record["health"]
        return record

    def check(self, record: dict[str, Any]) -> None:
        """Measure at the end what training has changed."""
        if self.before:
            record["before"] = self.before
        if self.retrieval is not None and self.epoch == self.config.training.epochs:
            record |= self.retrieval(self.method.backbone)

    def networks(self) -> Mapping[str, nn.Module]:
        """Return the method and the code head beside it."""
        return {**super().networks(), **({} if self.code is None else {"code": self.code.method})}

    def is_finite(self) -> bool:
        """Whether the losses of the method and of its code were finite."""
        return super().is_finite() and (self.code is None or self.code.is_finite())

    @property
    def divergence_remedy(self) -> str:
        """What to change when a loss is no longer finite."""
        if self.code is not None and not self.code.is_finite() and super().is_finite():
            return "it is the code head's: lower code.lr, in a new --out"
        return super().divergence_remedy

    def replay_facts(self) -> dict[str, Any]:
        """Return the number of images."""
        return {"images": len(self.source)}

    def write_outputs(self) -> None:
        """Write the encoder of every whole epoch."""
        if self.step % self.steps_per_epoch == 0:
            state = dict(self.method.state_dict())
            if self.code is not None:  # takes the place of a projector that the method may have
                kept = {key: value for key, value in state.items() if key.startswith("backbone.")}
                state = kept | self.code.weights()
            save_encoder(self.run, self.config, state, self.epoch)

    def out_of_memory_message(self) -> str:
        """Return one sentence with the batch that fits."""
        return out_of_memory_message(self.config, len(self.source))
