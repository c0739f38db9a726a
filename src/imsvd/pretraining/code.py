"""A code beside any method: a compact head that is trained on the features of every step.

The head sees detached features and has an optimizer, gradients and random numbers of its own, so
that the method trains exactly as it would without it: no norm, scale or random stream is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from imsvd.code_measures import pair_information
from imsvd.config import Config, OptimizerSettings
from imsvd.distributed import all_gather, all_reduce_sum, mean_over_ranks, own_row
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import share_norms
from imsvd.information import at_least_float32, soft_discretize
from imsvd.methods import IMSVD
from imsvd.methods.code import CODE_TEMPERATURE, CodeSettings
from imsvd.pretraining.optimizers import build_optimizer, set_learning_rate

LABELS = {"share_decided": "code", "share_agreeing": "same", "shared_nats": "nats"}
"""Column titles of what the code of an epoch's images shows."""
FEWEST_IMAGES = 2
"""Smallest part of a batch that BatchNorm can normalize."""


class GivenFeatures(nn.Module):
    """Stands where a method expects its backbone; its inputs are features already."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        """Return the features."""
        return features


class CodeTraining:
    """A code head in training, with its optimizer and the measurements of an epoch.

    Args:
        settings: of the head.
        config: of the run; gives seed and the shape of the learning rate's schedule.
        num_features: width of the features.
        fabric: knows device and ranks.
    """

    def __init__(
        self, settings: CodeSettings, config: Config, num_features: int, fabric: Fabric
    ) -> None:
        self.settings, self.peak_lr = settings, config.peak_lr
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            method = IMSVD(settings.as_method(), GivenFeatures(num_features))
        self.method = share_norms(method, fabric).to(fabric.device)
        optimizer = OptimizerSettings(name="adamw", weight_decay=settings.weight_decay)
        changes = {"optimizer": optimizer, "init": None}
        self.optimizer = build_optimizer(self.method, config.model_copy(update=changes))
        self.units = self.method.units
        self._reset()

    def _reset(self) -> None:
        width = sum(self.units)
        device = next(self.method.parameters()).device
        self.steps = 0
        self.sums = torch.zeros(3, device=device)  # loss, decided, agreeing
        self.joint = torch.zeros(width, width, device=device)
        self._of_all_ranks: dict[str, Tensor] | None = None

    def step(self, features: tuple[Tensor, Tensor], lr: float, progress: float) -> None:
        """Move the head by one batch.

        Args:
            features: of the two large views, (batch, width) each.
            lr: of the method at this step; the head follows its schedule at a rate of its own.
            progress: share of the training that this step completes, which sets the temperature.
        """
        if len(features[0]) < FEWEST_IMAGES:
            return
        rate = self.settings.lr * lr / self.peak_lr
        set_learning_rate(self.optimizer, rate, rate)
        with torch.autocast(features[0].device.type, enabled=False):
            detached = [at_least_float32(view.detach()) for view in features]
            _, logits = self.method.project(detached)
            loss = self.method.loss(*logits).loss
            self.optimizer.zero_grad()
            loss.backward()
        self._average_gradients()
        self.optimizer.step()
        # The temperature of the step is still in the logits; the saved code has one of its own.
        logits = [view * (self.method.temperature / CODE_TEMPERATURE) for view in logits]
        self.method.after_step(progress)
        self._record(loss.detach(), *(view.detach() for view in logits))

    def _average_gradients(self) -> None:
        """Average over ranks, as DDP does; each holds `world_size` times its share of the loss's."""
        weights = dict(self.method.named_parameters())
        gradients = {name: value.grad for name, value in weights.items() if value.grad is not None}
        for name, mean in mean_over_ranks(gradients).items():
            weights[name].grad = mean

    @torch.no_grad()
    def _record(self, loss: Tensor, first: Tensor, second: Tensor) -> None:
        shape = len(first), self.settings.variables, self.settings.units
        one, two = (soft_discretize(view, self.units).view(shape) for view in (first, second))
        largest, chosen = one.max(-1)
        agreeing = chosen == two.argmax(-1)
        hard = torch.zeros_like(one).scatter_(-1, chosen[..., None], 1.0).flatten(1)
        self.steps += 1
        self._of_all_ranks = None
        self.sums += torch.stack([loss, (largest > 0.9).float().mean(), agreeing.float().mean()])
        self.joint += hard.T @ hard

    def is_finite(self) -> bool:
        """Whether every loss of this epoch was a finite number."""
        return bool(torch.isfinite(self.sums[0]))

    def summarize(self) -> dict[str, float]:
        """Return what the code of an epoch's views shows, and begin the next epoch; on all ranks."""
        if self.steps == 0:
            return {}
        means = mean_over_ranks({"sums": self.sums / self.steps})["sums"]
        joint = all_reduce_sum(self.joint).double().cpu()
        self._reset()
        information = pair_information(joint, self.units)
        pairs = ~torch.eye(len(self.units), dtype=torch.bool)
        return {
            "share_decided": float(means[1]),
            "share_agreeing": float(means[2]),
            "shared_nats": float(information[pairs].mean()) if len(self.units) > 1 else 0.0,
        }

    def weights(self) -> dict[str, Tensor]:
        """Return the head's weights under the names that an encoder gives them, not yet sharp."""
        state = self.method.projector.state_dict()
        return {f"projector.{name}": value for name, value in state.items()}

    def gather(self) -> None:
        """Let every rank know what all have counted, for a checkpoint; all ranks call this."""
        self._of_all_ranks = {
            "sums": all_gather(self.sums[None]),
            "joint": all_gather(self.joint[None]),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep; counts have a row for every rank."""
        counts = self._of_all_ranks or {"sums": self.sums[None], "joint": self.joint[None]}
        return {
            "weights": dict(self.method.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            **counts,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.method.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        self.sums = own_row(state["sums"]).to(self.sums.device)
        self.joint = own_row(state["joint"]).to(self.joint.device)
