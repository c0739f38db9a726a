"""One measurement of `imsvd bench loss` in its own process: time and peak extra memory.

Started as `python -m imsvd.bench.loss_case CASE`, where CASE is the JSON of a `Case`; the last
line of standard output is the JSON of a `Measurement`. A fresh process per measurement keeps one
form's leftovers, in memory or in caches, from reaching the next.
"""

import json
import sys
import time
from typing import NamedTuple

import torch
import torch.distributed as dist

from imsvd import distributed
from imsvd.bench.loss_forms import FORMS
from imsvd.bench.peak_memory import peak, reset_peak

# A call longer than this is measured once, without a warm-up call of the same size.
LONG_CALL_SECONDS = 20.0


class Case(NamedTuple):
    """What to measure; `batch` counts the samples of all ranks together."""

    form: str
    batch: int
    width: int
    units: int
    threads: int
    ranks: int = 1
    rank: int = 0
    meeting_point: str = ""


class Measurement(NamedTuple):
    """Seconds per call, and bytes at the peak beyond the process with its inputs built."""

    seconds: float
    extra_bytes: int


def measure(case: Case) -> Measurement:
    """Measure in this process; with several ranks, the slowest and largest of them."""
    torch.set_num_threads(case.threads)
    if case.ranks > 1:
        meeting_point = f"file://{case.meeting_point}"
        dist.init_process_group(
            "gloo", init_method=meeting_point, rank=case.rank, world_size=case.ranks
        )
    try:
        # Small and complete: libraries are loaded and threads started before the baseline.
        _call(case.form, *_inputs(8 * case.ranks, 4 * case.units, case), case.units)
        first, second = _inputs(case.batch, case.width, case)
        baseline = reset_peak()
        seconds = _timed(case, first, second)
        extra = peak() - baseline
        if seconds < LONG_CALL_SECONDS:
            seconds = min(_timed(case, first, second) for _ in range(2))
        largest = distributed.gather_lists([(seconds, extra)])
        return Measurement(max(s for s, _ in largest), max(e for _, e in largest))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _inputs(batch: int, width: int, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(case.rank)
    shape = (batch // case.ranks, width)
    first = torch.randn(shape, generator=generator).requires_grad_()
    return first, torch.randn(shape, generator=generator).requires_grad_()


def _timed(case: Case, first: torch.Tensor, second: torch.Tensor) -> float:
    distributed.barrier()
    start = time.perf_counter()
    _call(case.form, first, second, case.units)
    return time.perf_counter() - start


def _call(form: str, first: torch.Tensor, second: torch.Tensor, units: int) -> None:
    first.grad = second.grad = None
    FORMS[form].step(first, second, units)


def main() -> None:
    """Measure the case on the command line and print the result."""
    case = Case(**json.loads(sys.argv[1]))
    measurement = measure(case)
    sys.stdout.write(json.dumps(measurement._asdict()) + "\n")


if __name__ == "__main__":
    main()
