"""`imsvd bench loss`: time and memory of the IMSVD loss against its lower bound, its dense form and its peers.

Each form runs forward and backward on two random embeddings. The lower bound is the three matrix
products that every implementation needs.
"""

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn

from imsvd import distributed
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
from imsvd.errors import InputError
from imsvd.losses.imsvd import IMSVDLoss

SIZES = ((256, 8160), (2048, 8160), (2048, 16320), (512, 65280))
# A call longer than this is measured once, without a warm-up call of the same size.
_LONG_CALL_SECONDS = 20.0


LossStep = Callable[[Tensor, Tensor, int], None]
"""Runs forward and backward on two `(batch, width)` embeddings, given the units per variable."""


@dataclass(frozen=True)
class Form(Contender[LossStep]):
    """One way to compute a loss; `matrices` of `(width, width)` are held at its peak."""

    matrices: int = 0


def _ours(first: Tensor, second: Tensor, units: int) -> None:
    torch.autograd.backward(IMSVDLoss(units)(first, second).loss)


def _floor(first: Tensor, second: Tensor, _units: int) -> None:
    with torch.no_grad():
        joint = first.T @ second
        first.grad = second @ joint.T
        second.grad = first @ joint


def _dense(first: Tensor, second: Tensor, units: int) -> None:
    """Build the whole joint matrix, pick out its blocks, and let autograd differentiate."""
    batch, width = first.shape
    variables = width // units
    q1, q2 = (view.view(batch, variables, units).softmax(-1) for view in (first, second))
    q1, q2 = q1.clamp_min(1e-8), q2.clamp_min(1e-8)
    similarity = (q1 * q2).sum(-1).log().mean()
    joint = q1.flatten(1).T @ q2.flatten(1) / batch
    blocks = joint.view(variables, units, variables, units).transpose(1, 2)
    same = torch.eye(variables, dtype=torch.bool, device=first.device)
    off_diagonal, diagonal = blocks[~same], blocks[same].diagonal(dim1=1, dim2=2)
    loss = (diagonal * diagonal.log()).sum() / variables - similarity
    pairs = variables * (variables - 1)
    torch.autograd.backward(loss + (off_diagonal * off_diagonal.log()).sum() / pairs)


def _vicreg(first: Tensor, second: Tensor, _units: int) -> None:
    loss = 25 * nn.functional.mse_loss(first, second)
    for view in (first, second):
        centered = view - view.mean(0)
        spread = torch.sqrt(centered.var(0) + 1e-4)
        covariance = centered.T @ centered / (len(view) - 1)
        off_diagonal = covariance.pow(2).sum() - covariance.diagonal().pow(2).sum()
        loss = loss + 12.5 * torch.relu(1 - spread).mean() + off_diagonal / view.shape[1]
    torch.autograd.backward(loss)


def _barlow_twins(first: Tensor, second: Tensor, _units: int) -> None:
    normalized = [(view - view.mean(0)) / view.std(0) for view in (first, second)]
    correlation = normalized[0].T @ normalized[1] / len(first)
    diagonal = correlation.diagonal()
    off_diagonal = correlation.pow(2).sum() - diagonal.pow(2).sum()
    torch.autograd.backward((1 - diagonal).pow(2).sum() + 0.0051 * off_diagonal)


def _lightly(name: str) -> LossStep:
    def step(first: Tensor, second: Tensor, _units: int) -> None:
        from lightly import loss  # noqa: PLC0415 - an optional package

        torch.autograd.backward(getattr(loss, name)()(first, second))

    return step


FORMS: dict[str, Form] = {
    "floor": Form("three matrix products", _floor, matrices=1),
    "ours": Form("IMSVD, ours", _ours),
    "dense": Form("IMSVD, dense autograd", _dense, matrices=6),
    "vicreg": Form("VICReg, plain", _vicreg, matrices=4),
    "vicreg-lightly": Form("VICReg, lightly", _lightly("VICRegLoss"), ("lightly",), 6),
    "barlow": Form("Barlow Twins, plain", _barlow_twins, matrices=3),
    "barlow-lightly": Form("Barlow Twins, lightly", _lightly("BarlowTwinsLoss"), ("lightly",), 5),
}


@dataclass(frozen=True)
class LossCase(Case):
    """A form and its size; `batch` counts the samples of all ranks together."""

    batch: int
    width: int
    units: int
    ranks: int = 1

    @property
    def threads(self) -> int:
        """Number of threads of each rank."""
        return max(1, (os.cpu_count() or 1) // self.ranks)


class _Loss(Benchmark[LossCase]):
    case = LossCase
    contenders = FORMS
    heading = "Loss, forward and backward"
    first_column = "loss"
    columns = (
        Column("ranks", "ranks", "d"),
        Column("seconds", "seconds", ".3f"),
        Column("time / floor", "times_floor"),
        Column("time / ours", "times_ours"),
        Column("MiB", "extra_mib", ".0f"),
        Column("MiB / embedding", "embeddings", ".1f"),
    )
    ratios = (
        Ratio("times_floor", "seconds", {"contender": "floor", "ranks": 1}),
        Ratio("times_ours", "seconds", {"contender": "ours"}),
    )
    largest = ("extra_mib", "embeddings")
    hidden = ("units",)

    def title(self, row: Row) -> str:
        return f"Batch {row['batch']:,}, width {row['width']:,}"

    def reason_to_skip(self, case: LossCase) -> str:
        matrices = FORMS[case.contender].matrices
        needed = 4 * (matrices * case.width**2 + 8 * case.batch * case.width * case.ranks)
        available = available_memory()
        if needed > available:
            return (
                f"needs about {needed / 2**30:.0f} GiB, {available / 2**30:.0f} GiB are available"
            )
        return super().reason_to_skip(case)

    def variables(self, case: LossCase) -> Mapping[str, str]:
        return {"OMP_NUM_THREADS": str(case.threads)}

    def processes(self, case: LossCase) -> int:
        return case.ranks

    def measure(self, case: LossCase) -> Numbers:
        torch.set_num_threads(case.threads)
        rank = int(os.environ["RANK"]) if case.ranks > 1 else 0
        if case.ranks > 1:
            place = f"file://{os.environ['MEETING_POINT']}"
            dist.init_process_group("gloo", init_method=place, rank=rank, world_size=case.ranks)
        try:
            # Small but complete: loads libraries and starts threads before the baseline.
            _timed(case.contender, _inputs(8, 4 * case.units, rank), case.units)
            views = _inputs(case.batch // case.ranks, case.width, rank)
            baseline = reset_peak()
            seconds = _timed(case.contender, views, case.units)
            extra = peak() - baseline
            if seconds < _LONG_CALL_SECONDS:
                seconds = min(_timed(case.contender, views, case.units) for _ in range(2))
            of_ranks = distributed.gather_lists([(seconds, extra)])
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        slowest, largest = (max(values) for values in zip(*of_ranks, strict=True))
        embeddings = largest / (4 * case.batch * case.width)
        return {"seconds": slowest, "extra_mib": largest / 2**20, "embeddings": embeddings}


def _inputs(batch: int, width: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, width, generator=generator).requires_grad_() for _ in range(2)]


def _timed(form: str, views: Sequence[Tensor], units: int) -> float:
    first, second = views
    first.grad = second.grad = None
    distributed.barrier()
    start = time.perf_counter()
    FORMS[form].make(first, second, units)
    return time.perf_counter() - start


def available_memory() -> int:
    """Return the bytes that new processes can use without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


BENCHMARK = _Loss()


def run(
    sizes: Sequence[tuple[int, int]] = SIZES,
    ranks: Sequence[int] = (1,),
    repeats: int = 3,
    console: Console | None = None,
    *,
    units: int = 80,
    forms: Sequence[str] = tuple(FORMS),
    output: Path | None = None,
) -> list[Row]:
    """Compare losses at pairs of global batch and width.

    Each number of gloo `ranks` shares the batch; above 1 only ours is measured.
    """
    for (batch, width), count in itertools.product(sizes, ranks):
        if count < 1 or batch % count:
            raise InputError(f"ranks = {count} does not divide the batch of {batch}.")
        if width % units:
            raise InputError(f"Width {width} is not divisible by units {units}.")
    cases = [
        LossCase(form, batch, width, units, count)
        for (batch, width), count in itertools.product(sizes, ranks)
        for form in forms
        if count == 1 or form == "ours"
    ]
    return BENCHMARK.run(cases, repeats, console, output)
