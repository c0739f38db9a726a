"""`imsvd bench heads`: projector and loss of IMSVD against those of VICReg and Barlow Twins.

A step is forward and backward of both views, without the optimizer. It is timed the first time it
runs, after a tiny step that loads libraries and starts threads. The cost of a whole step is computed
from parts: the backbone is timed on a few images and its time multiplied.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from imsvd.bench.comparison import (
    Benchmark,
    Case,
    Column,
    Contender,
    Numbers,
    Ratio,
    Row,
    peak,
    reset_peak,
)
from imsvd.bench.loss import FORMS, LossStep
from imsvd.errors import InputError
from imsvd.losses.barlow_twins import BarlowTwinsLoss
from imsvd.losses.vicreg import VICRegLoss
from imsvd.methods import IMSVDSettings
from imsvd.methods.vicreg import VICRegSettings
from imsvd.networks import BackboneSettings, build_backbone, projector
from imsvd.paper_numbers import paper_tables

BACKBONE = "backbone"
"""The case that is no head."""
FEATURES = 2048
"""Width of a ResNet-50's features."""
PROCESSES = 32
"""Number of GPUs that shared the paper's batch."""
WIDTHS = IMSVDSettings().projector, VICRegSettings().projector
"""Projector of IMSVD, and that of VICReg and Barlow Twins."""


def _built_in(build: Callable[[], nn.Module]) -> LossStep:
    def step(first: Tensor, second: Tensor, _units: int) -> None:
        torch.autograd.backward(build()(first, second).loss)

    return step


def _no_loss(first: Tensor, second: Tensor, _units: int) -> None:
    for embedding in (first, second):
        embedding.grad = torch.ones_like(embedding)


HEADS: dict[str, Contender[LossStep]] = {
    "imsvd": Contender("IMSVD", FORMS["ours"].make),
    "vicreg": Contender("VICReg, ours", _built_in(VICRegLoss)),
    "vicreg-plain": Contender("VICReg, D x D matrices", FORMS["vicreg"].make),
    "barlow": Contender("Barlow Twins, ours", _built_in(BarlowTwinsLoss)),
    "barlow-plain": Contender("Barlow Twins, D x D matrix", FORMS["barlow"].make),
}
_BACKBONE = {BACKBONE: Contender("ResNet-50", _no_loss)}


@dataclass(frozen=True)
class HeadCase(Case):
    """A step of a head, or of the `BACKBONE`.

    Attributes:
        batch: number of images.
        widths: features and layers of the projector, given by the head; empty for the backbone.
        units: units per variable.
        size: side of the backbone's images in pixels.
    """

    batch: int
    widths: tuple[int, ...] = field(compare=False)
    units: int
    size: int


class _Heads(Benchmark[HeadCase]):
    case = HeadCase
    contenders = HEADS | _BACKBONE
    heading = "Projector and loss"
    first_column = "head"
    columns = (
        Column("projector s", "projector"),
        Column("loss s", "loss"),
        Column("both s", "step"),
        Column("time / IMSVD", "step_ratio"),
        Column("peak MiB", "peak_mib", ",.0f"),
    )
    whole_columns = (
        Column("one process s", "whole", ",.1f"),
        Column("time / IMSVD", "whole_ratio"),
        Column(f"one of {PROCESSES} processes s", "process", ",.2f"),
        Column("time / IMSVD", "process_ratio"),
        Column("paper h", "paper_hours", "g"),
        Column("time / IMSVD", "paper_ratio"),
    )
    ratios = tuple(
        Ratio(key, number, {"contender": "imsvd"})
        for key, number in (
            ("step_ratio", "step"),
            ("whole_ratio", "whole"),
            ("process_ratio", "process"),
            ("paper_ratio", "paper_hours"),
        )
    )
    largest = ("peak_mib",)
    hidden = ("units",)

    def title(self, row: Row) -> str:
        del row
        return "Projector and loss"

    def tables(self, row: Row) -> Mapping[str, Sequence[Column]]:
        whole = {"Whole step, computed from its parts": self.whole_columns}
        return {**super().tables(row), **whole}

    def measure(self, case: HeadCase) -> Numbers:
        torch.manual_seed(0)
        return _measure_backbone(case) if case.contender == BACKBONE else _measure_head(case)

    def derive(self, found: dict[HeadCase, Numbers]) -> dict[HeadCase, Numbers]:
        (backbone,) = (case for case in found if case.contender == BACKBONE)
        per_image = found[backbone]["seconds"] / backbone.batch
        return {
            case: _with_backbone(case, numbers, per_image) | {"backbone_images": backbone.batch}
            for case, numbers in found.items()
            if case != backbone
        }

    def facts(self, rows: Sequence[Row]) -> dict[str, str]:
        ours, others = ("→".join(map(str, row["widths"])) for row in rows[:2])
        batch, milliseconds = rows[0]["batch"], 1000 * rows[0]["backbone"]
        return {
            "projector and loss": f"forward and backward of both views of {batch:,} images, with the "
            "gradients of the features, without the optimizer; IMSVD's projector is "
            f"{ours}, the others' {others}",
            "ours": "the loss that `imsvd pretrain` uses, which compares samples with samples where "
            "that is less work; D x D: builds the matrices of the published formulas",
            "peak memory": "weights, features, activations and gradients",
            "accuracy": "all heads but IMSVD's have the same projector, so its times show the "
            "measurement error",
            "whole step": "not measured directly: projector and loss, plus a ResNet-50 at "
            f"{rows[0]['size']} pixels, which takes {milliseconds:,.0f} ms per image (two views, "
            f"forward and backward) in a batch of {rows[0]['backbone_images']}",
            f"one of {PROCESSES} processes": f"as in the paper: backbone and projector of "
            f"{batch // PROCESSES} images (the projector is measured at that size) and the loss of "
            f"all {batch:,}, computed by every process; without communication, although "
            "`imsvd pretrain` divides IMSVD's loss between processes",
            "paper": "its table of running times: 100 epochs on 32 V100",
        }


def _with_backbone(case: HeadCase, numbers: Numbers, per_image: float) -> Numbers:
    step, loss = numbers["seconds"], numbers["loss"]
    method = HEADS[case.contender].label.partition(",")[0]
    return {
        "backbone": per_image,
        "projector": step - loss,
        "loss": loss,
        "step": step,
        "peak_mib": numbers["peak_mib"],
        "whole": step + case.batch * per_image,
        "process": numbers["share"] + loss + case.batch // PROCESSES * per_image,
        "paper_hours": paper_tables()["cost"].rows[method]["hours"],
    }


def _measure_head(case: HeadCase) -> Numbers:
    """Time a step and its loss, and the projector alone on one process's share of the images."""
    loss_step = HEADS[case.contender].make
    head_step(projector((8, 8, 2 * case.units)), _features(8, 8), loss_step, case.units)
    baseline = reset_peak()
    network = projector(case.widths)
    views = _features(case.batch, case.widths[0])
    seconds, loss = head_step(network, views, loss_step, case.units)
    peak_mib = (peak() - baseline) / 2**20
    few = _features(case.batch // PROCESSES, case.widths[0])
    share = min(head_step(network, few, _no_loss, case.units)[0] for _ in range(3))
    return {"seconds": seconds, "loss": loss, "share": share, "peak_mib": peak_mib}


def head_step(
    network: nn.Module, views: Sequence[Tensor], loss_step: LossStep, units: int
) -> tuple[float, float]:
    """Run projector and loss forward and backward; return the seconds of both and of the loss.

    The graph is cut at the embeddings to time the loss inside the step. This changes neither the
    gradients nor the cost.
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
    """Return features of two views, with gradients, as a backbone would need them."""
    return [torch.randn(batch, width).requires_grad_() for _ in range(2)]


def _measure_backbone(case: HeadCase) -> Numbers:
    backbone = build_backbone(BackboneSettings()).to(memory_format=torch.channels_last)
    shape = case.batch, 3, case.size, case.size
    views = [torch.randn(shape).to(memory_format=torch.channels_last) for _ in range(2)]
    head_step(backbone, views, _no_loss, case.units)  # libraries prepare for these sizes
    return {"seconds": head_step(backbone, views, _no_loss, case.units)[0]}


BENCHMARK = _Heads()


def run(
    batch: int = 2048,
    widths: tuple[tuple[int, ...], tuple[int, ...]] = WIDTHS,
    repeats: int = 1,
    console: Console | None = None,
    output: Path | None = None,
    *,
    images: int = 8,
    size: int = 224,
    units: int = 80,
) -> list[Row]:
    """Compare heads with layers `widths`, of IMSVD's projector and of the others'.

    The backbone is timed on `images` of `size` pixels. `batch` counts the images of all processes.
    """
    if batch < 2 * PROCESSES or batch % PROCESSES:
        raise InputError(
            f"batch = {batch} does not give each of {PROCESSES} processes the same number of "
            f"images, at least 2; choose a multiple of {PROCESSES}, at least {2 * PROCESSES}."
        )
    if any(width < 1 for layers in widths for width in layers):
        raise InputError(f"widths = {widths}: every layer needs a width of at least 1.")
    if widths[0][-1] % units:
        raise InputError(f"Width {widths[0][-1]} is not divisible by units {units}.")
    cases = [
        HeadCase(head, batch, (FEATURES, *widths[head != "imsvd"]), units, size) for head in HEADS
    ]
    backbone = replace(cases[0], contender=BACKBONE, batch=images, widths=())
    return BENCHMARK.run([*cases, backbone], repeats, console, output)
