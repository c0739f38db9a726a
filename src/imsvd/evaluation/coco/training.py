"""Training a detector by iterations, to be resumed exactly after any interruption."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn

from imsvd.checkpoints import load_newest_checkpoint, save_checkpoint, seed_step
from imsvd.config import Config
from imsvd.distributed import any_rank, mean_over_ranks, on_first_rank, together
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation.coco.batches import Batch, TrainingStream, to_device, training_batches
from imsvd.evaluation.coco.model import MaskRCNN, batch_norms
from imsvd.evaluation.coco.settings import DetectionSettings
from imsvd.files import remove_leftovers
from imsvd.networks import synchronize_norms
from imsvd.progress import progress_bar
from imsvd.training.agreement import require_same_start
from imsvd.training.hardware import worker_count
from imsvd.training.interruption import StopRequest

_LINES = 20
"""How many lines of losses a whole training prints."""

_NAMES = {"loss_objectness": "object", "loss_rpn_box_reg": "anchor"}
"""Short names of torchvision's losses, so that a line fits into 80 characters."""


class DetectorTrainer:
    """The state of a training and the loop that moves it forward.

    Args:
        model: the detector, in whatever state.
        stream: the images.
        settings: of the training.
        folder: where checkpoints are kept.
        fabric: launched.
    """

    def __init__(
        self,
        model: MaskRCNN,
        stream: TrainingStream,
        settings: DetectionSettings,
        folder: Path,
        fabric: Fabric,
    ) -> None:
        if settings.batch_size % fabric.world_size:
            raise InputError(
                f"batch_size={settings.batch_size} cannot be shared by {fabric.world_size} "
                "processes; choose a multiple."
            )
        self.settings, self.folder, self.fabric, self.stream = settings, folder, fabric, stream
        self.step = 0
        self.model = _synchronize(model, fabric)
        self.wrapped, self.optimizer = fabric.setup(self.model, build_optimizer(model, settings))
        self.losses: dict[str, Tensor] = {}
        self.steps_summed = 0

    def fit(self, console: Console) -> None:
        """Run the remaining steps; on a stop signal save and raise `Interrupted`."""
        for complaint in together(self.resume):
            console.print(f"[yellow]{escape(complaint)}[/yellow] Using the checkpoint before it.")
        require_same_start(self.step, self.stream.split.fingerprint)
        if self.fabric.is_global_zero:
            remove_leftovers(self.folder)
        total = self.settings.iterations
        every = max(1, total // _LINES)
        saved_at = time.monotonic()
        self.model.train()
        with StopRequest() as stop, progress_bar(console) as bar:
            task = bar.add_task("detector", total=total, completed=self.step)
            for batch in self.batches(range(self.step, total)):
                self.train_step(batch)
                bar.advance(task)
                if self.step % every == 0:
                    bar.console.print(f"{self.step:>7,}  {self.report()}", highlight=False)
                due = time.monotonic() - saved_at > 60 * self.settings.compute.checkpoint_minutes
                # Ranks have clocks and signals of their own, but must save and stop together.
                wanted = due or bool(stop.signal_number) or self.step == total
                if any_rank(wanted, self.fabric.device):
                    self.save()
                    saved_at = time.monotonic()
                if any_rank(bool(stop.signal_number), self.fabric.device):
                    console.print(
                        f"Stopped and saved at iteration {self.step:,}; repeat the command to go on."
                    )
                    raise Interrupted(stop.signal_number or signal.SIGINT)

    def batches(self, steps: range) -> Iterable[Batch]:
        """This rank's images of `steps`."""
        return training_batches(
            self.stream,
            steps,
            batch_size=self.settings.batch_size,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            workers=worker_count(Config(compute=self.settings.compute), self.fabric),
        )

    def train_step(self, batch: Batch) -> None:
        """Learn from one batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate(self.step)
        self._seed()
        losses: dict[str, Tensor] = self.wrapped(*to_device(batch, self.fabric.device))
        self.optimizer.zero_grad()
        self.fabric.backward(torch.stack(list(losses.values())).sum())
        self.optimizer.step()
        self.step += 1
        self.steps_summed += 1
        for name, loss in losses.items():
            self.losses[name] = self.losses.get(name, torch.zeros_like(loss)) + loss.detach()

    def precise_norms(self) -> None:
        """Replace BatchNorm's decaying averages by those over further batches, as MoCo does.

        A decaying average looks back on a few batches only, and each has few images.
        """
        steps = self.settings.iterations + np.arange(self.settings.precise_batches)
        norms = [] if self.settings.norm == "frozen" else batch_norms(self.model)
        if not norms or not len(steps):
            return
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()  # type: ignore[operator]
            norm.momentum = None  # type: ignore[assignment]
        self.model.train()
        with torch.no_grad():
            for number, batch in zip(
                steps, self.batches(range(steps[0], steps[-1] + 1)), strict=True
            ):
                self._seed(int(number))
                self.model(*to_device(batch, self.fabric.device))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            statistics = {name: norm.get_buffer(name) for name in ("running_mean", "running_var")}
            for name, mean in mean_over_ranks(statistics).items():
                norm.get_buffer(name).copy_(mean)

    def report(self) -> str:
        """The mean losses since the last report; raises if they are no numbers."""
        self._refuse_divergence()
        means = {name: float(value) / self.steps_summed for name, value in self.losses.items()}
        self.losses, self.steps_summed = {}, 0
        terms = " ".join(f"{_NAMES.get(name, name)} {value:.2f}" for name, value in means.items())
        return f"loss {sum(means.values()):.2f} ({terms})"

    def save(self) -> None:
        """Write a checkpoint; one process writes for all."""
        self._refuse_divergence()
        on_first_rank(self._write)

    def _write(self) -> None:
        state = {
            "step": self.step,
            "weights": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
        }
        save_checkpoint(self.folder, self.step, state)

    def resume(self) -> list[str]:
        """Load the newest good checkpoint, if any; return what was wrong with newer ones."""
        state, complaints = load_newest_checkpoint(self.folder)
        if state is None:
            if complaints:
                raise InputError(f"{complaints[0]} No good one is left; remove {self.folder}.")
            return []
        self.step = state["step"]
        self.model.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["precision"]:  # empty where gradients were not scaled
            self.fabric.strategy.precision.load_state_dict(state["precision"])
        return complaints

    def _seed(self, step: int | None = None) -> None:
        """Let what a step draws, such as anchors, follow from the seed, the step and the rank."""
        number = self.step if step is None else step
        seed_step(self.settings.seed, number, self.fabric.global_rank)

    def _refuse_divergence(self) -> None:
        broken = not all(bool(torch.isfinite(value)) for value in self.losses.values())
        # One rank alone would leave the others waiting for it.
        if any_rank(broken, self.fabric.device):
            raise InputError(
                f"the losses are no longer finite at iteration {self.step:,}; what was saved before "
                "is kept — lower lr or raise warmup_share, such as --set lr=0.02."
            )


def build_optimizer(model: nn.Module, settings: DetectionSettings) -> torch.optim.SGD:
    """SGD; the weights of norms do not decay."""
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


def _synchronize(model: MaskRCNN, fabric: Fabric) -> MaskRCNN:
    """Share BatchNorm's statistics between GPUs."""
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        synchronized = synchronize_norms(model)
        assert isinstance(synchronized, MaskRCNN)
        return synchronized
    return model
