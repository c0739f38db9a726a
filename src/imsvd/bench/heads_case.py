"""One measurement of `imsvd bench heads` in its own process: a step of projector and loss, or of the backbone.

Started as `python -m imsvd.bench.heads_case CASE`, where CASE is the JSON of a `Case`; the last line of
standard output is the JSON of a `Measurement`. A step is forward and backward of both views, and no
optimizer. It is timed the first time it runs, after a tiny one that loads libraries and starts threads.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from imsvd.bench.loss_forms import FORMS
from imsvd.bench.peak_memory import peak, reset_peak
from imsvd.losses.barlow_twins import BarlowTwinsLoss
from imsvd.losses.vicreg import VICRegLoss
from imsvd.networks import BackboneSettings, build_backbone, projector

BACKBONE = "backbone"
"""The case that is no head."""
_SHARE_CALLS = 3

LossStep = Callable[[Tensor, Tensor, int], None]


class Head(NamedTuple):
    """A projector and a loss.

    Attributes:
        label: what the table calls it.
        method: what the paper's table calls it.
        loss_step: forward and backward of the loss of two embeddings, as in `loss_forms`.
    """

    label: str
    method: str
    loss_step: LossStep


class Case(NamedTuple):
    """What to measure.

    Attributes:
        head: key of `HEADS`, or `BACKBONE`.
        batch: images.
        widths: features and layers of the projector; empty for the backbone.
        units: units of a variable.
        processes: how many processes would share the batch.
        size: pixels a side, for the backbone.
        threads: of PyTorch.
    """

    head: str
    batch: int
    widths: tuple[int, ...]
    units: int
    processes: int
    size: int
    threads: int


class Measurement(NamedTuple):
    """Seconds of a step and what of them went to the loss; of the projector for one process's images.

    `peak_bytes` counts all that the step needed: weights, features, activations and gradients. Of
    the backbone only `seconds` is measured.
    """

    seconds: float
    loss: float
    share: float
    peak_bytes: int


def _built_in(build: Callable[[], nn.Module]) -> LossStep:
    def step(first: Tensor, second: Tensor, _units: int) -> None:
        torch.autograd.backward(build()(first, second).loss)

    return step


HEADS: dict[str, Head] = {
    "imsvd": Head("IMSVD", "IMSVD", FORMS["ours"].step),
    "vicreg": Head("VICReg, ours", "VICReg", _built_in(VICRegLoss)),
    "vicreg-plain": Head("VICReg, D x D matrices", "VICReg", FORMS["vicreg"].step),
    "barlow": Head("Barlow Twins, ours", "Barlow Twins", _built_in(BarlowTwinsLoss)),
    "barlow-plain": Head("Barlow Twins, D x D matrix", "Barlow Twins", FORMS["barlow"].step),
}


def measure(case: Case) -> Measurement:
    """Measure in this process."""
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    return _measure_backbone(case) if case.head == BACKBONE else _measure_head(case)


def _measure_head(case: Case) -> Measurement:
    loss_step = HEADS[case.head].loss_step
    head_step(projector((8, 8, 2 * case.units)), _features(8, 8), loss_step, case.units)
    baseline = reset_peak()
    network = projector(case.widths)
    views = _features(case.batch, case.widths[0])
    seconds, loss = head_step(network, views, loss_step, case.units)
    peak_bytes = peak() - baseline
    few = _features(case.batch // case.processes, case.widths[0])
    calls = [head_step(network, few, _no_loss, case.units) for _ in range(_SHARE_CALLS)]
    return Measurement(seconds, loss, min(call[0] for call in calls), peak_bytes)


def head_step(
    network: nn.Module, views: Sequence[Tensor], loss_step: LossStep, units: int
) -> tuple[float, float]:
    """Run projector and loss forward and backward; seconds of both and of the loss alone.

    The graph is cut at the embeddings, which changes neither result nor cost, so that the loss
    can be timed inside the step.
    """
    network.zero_grad()
    for view in views:
        view.grad = None
    began = time.perf_counter()
    embeddings = [network(view) for view in views]
    first, second = (embedding.detach().requires_grad_() for embedding in embeddings)
    before = time.perf_counter()
    loss_step(first, second, units)
    loss = time.perf_counter() - before
    assert first.grad is not None
    assert second.grad is not None
    torch.autograd.backward(embeddings, [first.grad, second.grad])
    return time.perf_counter() - began, loss


def _features(batch: int, width: int) -> list[Tensor]:
    """Features of two views; the backbone behind them would want their gradients."""
    return [torch.randn(batch, width).requires_grad_() for _ in range(2)]


def _no_loss(first: Tensor, second: Tensor, _units: int) -> None:
    for embedding in (first, second):
        embedding.grad = torch.ones_like(embedding)


def _measure_backbone(case: Case) -> Measurement:
    backbone = build_backbone(BackboneSettings()).to(memory_format=torch.channels_last)
    shape = case.batch, 3, case.size, case.size
    views = [torch.randn(shape).to(memory_format=torch.channels_last) for _ in range(2)]
    head_step(backbone, views, _no_loss, case.units)  # libraries prepare for these sizes
    seconds, _ = head_step(backbone, views, _no_loss, case.units)
    return Measurement(seconds, 0, 0, 0)


def main() -> None:
    """Measure the case on the command line and print the result."""
    values = json.loads(sys.argv[1])
    case = Case(**{**values, "widths": tuple(values["widths"])})
    sys.stdout.write(json.dumps(measure(case)._asdict()) + "\n")


if __name__ == "__main__":
    main()
