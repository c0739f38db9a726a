"""The one loop of everything that trains and can be resumed: encoders, classifiers, detectors.

`Training.fit` owns what a training step itself should not have to know: resuming from the newest
good checkpoint, agreement between ranks, how often to save, stop signals, divergence, a full GPU
and progress. A subclass says what a step computes (`loss`), on which batches, what happens at the
end of an epoch, and what it keeps besides weights and optimizer.
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn

from imsvd.checkpoints import (
    load_newest_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
    seed_step,
)
from imsvd.datasets import BadImage, ImageSource, Quarantine
from imsvd.distributed import any_rank, gather_lists, on_first_rank, rank, together
from imsvd.engine.divergence import copied, keep_bad_step
from imsvd.engine.fabric import Fabric
from imsvd.engine.stopping import Agreement, StopRequest, require_same_start
from imsvd.engine.tracing import not_finite, state_tensors
from imsvd.errors import DivergedError, InputError, Interrupted
from imsvd.files import remove_leftovers
from imsvd.progress import progress_bar

B = TypeVar("B")

SMALLEST_SCALE = 1.0
"""Scale of float16 gradients below which every step has overflowed for a long time."""
_STATE = {"step", "images", "weights", "optimizer", "precision", "random", "extra"}
"""What a checkpoint must hold."""
_SAVE, _STOP = 1, 2  # what a rank wants after a step; the most urgent wish wins

BAD_IMAGES = "bad_images.jsonl"
"""The list of unreadable images in a run's folder."""


class Display(Protocol):
    """What the loop needs of the terminal view of a training."""

    def step(self) -> None:
        """Advance by one step."""

    def say(self, text: str) -> None:
        """Print a line above the moving bar."""


class TrainingPlan(NamedTuple):
    """What the loop needs to know before it begins."""

    place: Path
    """The folder that the user knows; named in messages."""
    checkpoints: Path
    """The folder of checkpoints, `place` itself or below it."""
    images: str
    """Fingerprint of the training images."""
    epochs: int
    steps_per_epoch: int
    seed: int
    """Of what a step draws."""
    checkpoint_minutes: float
    """Longest time between checkpoints."""
    identity: Mapping[str, Any] = MappingProxyType({})
    """Plain values that tell this training from others; a checkpoint with other values is not its own."""


class Training(ABC, Generic[B]):
    """A network in training: the state of a run and the loop that moves it forward.

    Args:
        fabric: launched.
        network: what is trained, already laid out for the device.
        optimizer: of its parameters.
        plan: where its files are, how long it takes.
    """

    can_be_replayed = False
    """Whether `imsvd replay` can build this training from its folder."""
    seed_every_step = False
    """Whether random draws inside a step depend on seed, step and rank alone."""
    quarantine: Quarantine | None = None
    """Where unreadable images are counted; set by `prepare` where there can be any."""

    def __init__(
        self,
        fabric: Fabric,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: TrainingPlan,
    ) -> None:
        self.fabric, self.plan, self.place = fabric, plan, plan.place
        self.steps_per_epoch = plan.steps_per_epoch
        self.last_step = plan.epochs * plan.steps_per_epoch
        self.step = 0
        self._whole = self.trained = network
        self.model, self.optimizer = fabric.setup(network, optimizer)
        self.loss_sum = torch.zeros((), device=fabric.device)
        self._bad: list[BadImage] = []
        self.start: dict[str, Any] | None = None
        """The state before the first step, until there is a checkpoint."""

    # What a subclass defines.

    @abstractmethod
    def batches(self, steps: range) -> Iterable[B]:
        """Return this rank's batches of `steps`."""

    @abstractmethod
    def loss(self, batch: B) -> Tensor:
        """Return the loss to differentiate."""

    @abstractmethod
    def set_learning_rates(self) -> None:
        """Give the optimizer the learning rates of the current step."""

    @property
    @abstractmethod
    def divergence_remedy(self) -> str:
        """What to change when the loss is no longer finite; ends a sentence."""

    def prepare(self, console: Console) -> None:
        """Open what only a training that has steps left needs, such as its images."""

    def display(self, console: Console) -> AbstractContextManager[Display]:
        """Return the terminal view."""
        return StepBar(console, "training", self.step, self.last_step)

    def begin_epoch(self) -> None:
        """Prepare the next epoch, or the rest of one that was interrupted."""

    def after_step(self) -> None:
        """Update what gradients do not, and record what the step showed."""

    def end_epoch(self) -> None:
        """Measure and log what the epoch achieved."""

    def bad_images(self, batch: B) -> list[BadImage]:
        """Return the unreadable images that were replaced in `batch`."""
        del batch
        return []

    def write_outputs(self) -> None:
        """Write the files that belong to a checkpoint; only the first rank calls this."""

    def extra_state(self) -> dict[str, Any]:
        """Return what a checkpoint must keep besides weights, optimizer and random state."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `extra_state` returned."""

    def networks(self) -> Mapping[str, nn.Module]:
        """Return what a step moves, by the prefix of its tensors' names."""
        return {"": self._whole}

    def is_finite(self) -> bool:
        """Whether every loss since the last checkpoint was a finite number.

        With float16, single steps may overflow: they are dropped, and the scale is halved. Then the
        scale tells, and the statistics of BatchNorm, which a dropped step has changed.
        """
        if self._scaler is not None and float(self._scaler.get_scale()) < SMALLEST_SCALE:
            return False
        if self._scaler is not None and not_finite(state_tensors(self.networks())):
            return False
        return bool(torch.isfinite(self.loss_sum))

    def replay_facts(self) -> dict[str, Any]:
        """Return what `imsvd replay` must know besides the configuration."""
        return {}

    def is_finished_without_checkpoint(self) -> bool:
        """Whether the results of a whole training are there although its checkpoints are gone."""
        return False

    def out_of_memory_message(self) -> str:
        """Return one sentence for a device that cannot hold a step."""
        return "the device's memory cannot hold a step; lower batch_size with --set."

    def close(self) -> None:
        """Close what `prepare` opened."""

    # What every training does.

    def fit(self, console: Console) -> bool:
        """Train until the last step, continuing from the newest checkpoint.

        Returns:
            Whether there was anything left to train.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, when everything has been saved.
        """
        for complaint in together(self.resume):
            console.print(f"[yellow]{escape(complaint)}[/yellow] Using the checkpoint before it.")
        require_same_start(self.step, self.plan.images)
        on_first_rank(self._remove_leftovers)
        if self.step >= self.last_step:
            return False
        self.prepare(console)
        try:
            if (problem := self._run_until_it_ends(console)) is not None:
                raise InputError(f"{problem} {keep_bad_step(self, console)}")
        except torch.OutOfMemoryError as error:
            raise InputError(self.out_of_memory_message()) from error
        finally:
            self.close()
        if self.quarantine is not None and self.quarantine.count:
            console.print(
                f"[yellow]{self.quarantine.count} unreadable images were replaced; "
                f"{self.place / BAD_IMAGES} lists them.[/yellow]"
            )
        return True

    def _run_until_it_ends(self, console: Console) -> str | None:
        """Train; return what is wrong if the loss is no longer finite."""
        if self.step == 0:
            self.start = copied(self.state())
        try:
            with StopRequest() as stop, self.display(console) as display:
                self._run(stop, display)
        except (
            DivergedError
        ) as problem:  # returned, so that the workers end that its traceback holds
            return str(problem)
        return None

    def _run(self, stop: StopRequest, display: Display) -> None:
        saved_at = time.monotonic()
        agreement = Agreement(self.fabric.device)
        self.begin_epoch()
        for batch in self.batches(range(self.step, self.last_step)):
            self.train_step(batch)
            display.step()
            epoch_ended = self.step % self.steps_per_epoch == 0
            self._bad += self.bad_images(batch)
            if epoch_ended or self.fabric.world_size == 1:
                self._report_bad_images()
            if epoch_ended:
                self._refuse_divergence()
                self.end_epoch()
            due = time.monotonic() - saved_at > 60 * self.plan.checkpoint_minutes
            urgency = agreement.ask(_STOP if stop.requested else _SAVE * due, last=epoch_ended)
            if epoch_ended or urgency:
                self._report_bad_images()
                self.save()
                saved_at = time.monotonic()
            if urgency == _STOP:
                display.say(
                    f"Stopped and saved at step {self.step:,}. Run the same command to resume."
                )
                raise Interrupted(stop.signal_number or signal.SIGINT)
            if epoch_ended and self.step < self.last_step:
                self.begin_epoch()

    def train_step(self, batch: B) -> None:
        """Move the weights by one batch."""
        self.set_learning_rates()
        if self.seed_every_step:
            seed_step(self.plan.seed, self.step, self.fabric.global_rank)
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.optimizer.step()
        self.step += 1
        self._add_up(loss.detach())
        self.after_step()

    def _add_up(self, loss: Tensor) -> None:
        """Remember whether the loss was finite; it stays on the device, so that no step waits for it."""
        if self._scaler is not None:  # has dropped the step and lowered its scale
            loss = loss.nan_to_num(0, 0, 0)
        self.loss_sum += loss

    @property
    def _scaler(self) -> Any:
        """What scales float16 gradients, if anything does."""
        return getattr(self.fabric.strategy.precision, "scaler", None)

    @property
    def epoch(self) -> int:
        """How many epochs are complete."""
        return self.step // self.steps_per_epoch

    def save(self) -> None:
        """Write a checkpoint and the files that belong to it; the first rank writes for all."""
        self._refuse_divergence()
        self.before_saving()
        on_first_rank(self._write)
        self.start = None

    def before_saving(self) -> None:
        """Collect what ranks count separately; all ranks call this before the first one writes."""

    def _write(self) -> None:
        # The checkpoint comes last: a training that it shows to be finished has its outputs.
        self.write_outputs()
        save_checkpoint(self.plan.checkpoints, self.step, self.state())

    def state(self) -> dict[str, Any]:
        """Return everything that a checkpoint keeps; its tensors are those in use."""
        return {
            "step": self.step,
            "images": self.plan.images,
            "identity": dict(self.plan.identity),
            "weights": dict(self.trained.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "random": random_state(),
            "extra": self.extra_state(),
        }

    def resume(self) -> list[str]:
        """Load the newest good checkpoint, if any; return what was wrong with newer ones."""
        state, complaints = load_newest_checkpoint(self.plan.checkpoints, self._objection)
        if state is None:
            if complaints:
                raise InputError(
                    f"{complaints[0]} No good checkpoint is left; remove {self.place} to start again."
                )
            if self.is_finished_without_checkpoint():
                self.step = self.last_step
            return []
        if "extra" not in state:
            raise InputError(
                f"{self.place} was begun by an earlier version of imsvd, whose checkpoints this one does "
                "not read; start again in another folder."
            )
        if state["images"] != self.plan.images:
            raise InputError(
                f"the images are not those that {self.place} was trained on so far; "
                "restore them to resume, or give another --out for a new run."
            )
        try:
            self.restore(state)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"the newest checkpoint of {self.place} does not fit this training ({reason}); "
                f"remove it from {self.plan.checkpoints} to use the one before it."
            ) from error
        return complaints

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the step of `state`, which `state()` returned."""
        self.step = state["step"]
        self.loss_sum.zero_()
        self.trained.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        _lay_out_like_weights(self.optimizer.optimizer)
        if state["precision"]:  # empty where gradients are not scaled
            self.fabric.strategy.precision.load_state_dict(state["precision"])
        restore_random_state(state["random"])
        self.load_extra_state(state["extra"])

    def _objection(self, state: dict[str, Any]) -> str:
        """Return why a checkpoint cannot be one of this training, or an empty string."""
        own, found = self.plan.identity, state.get("identity", {})
        for key in own:
            if key in found and found[key] != own[key]:
                return f"is of another training: its {key} is {found[key]!r}, not {own[key]!r}"
        lacking = sorted(_STATE - state.keys())
        if lacking and "extra" in state:  # whose absence has a sentence of its own
            return f"lacks {' and '.join(lacking)}; another version of imsvd may have written it"
        return ""

    def _remove_leftovers(self) -> None:
        for folder in {self.place, self.plan.checkpoints}:
            remove_leftovers(folder)

    def _report_bad_images(self) -> None:
        """Tell every rank of every bad image, so that all of them stop together if there are too many."""
        if self.quarantine is not None:
            self.quarantine.report(gather_lists(self._bad))
        self._bad = []

    def _refuse_divergence(self) -> None:
        """Raise rather than save weights that are no longer numbers."""
        # One rank alone would leave the others waiting for it.
        if any_rank(not self.is_finite(), self.fabric.device):
            raise DivergedError(
                f"the loss is no longer finite at step {self.step:,}; the last checkpoint is kept "
                f"— {self.divergence_remedy}."
            )


def _lay_out_like_weights(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded tensors the memory layout of their weights, as an optimizer creates them."""
    for weight, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                values[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


class StepBar:
    """A single bar over all steps."""

    def __init__(self, console: Console, title: str, done: int, total: int) -> None:
        self._bar = progress_bar(console)
        self._task = self._bar.add_task(title, total=total, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self) -> None:
        """Advance by one step."""
        self._bar.advance(self._task)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text, highlight=False)


def shared_quarantine(
    source: ImageSource, limit: float, place: Path, setting: str = "data.bad_image_limit"
) -> Quarantine:
    """Return the quarantine that is listed in `place`, known to all ranks; the first one writes it."""
    path = place / BAD_IMAGES if rank() == 0 else None
    quarantine = together(lambda: Quarantine(source, limit, path, setting))
    quarantine.adopt(gather_lists(quarantine.listed))
    return quarantine
