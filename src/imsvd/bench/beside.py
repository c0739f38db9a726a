"""`imsvd bench step --beside N`: training steps beside N busy processes, as a share of those alone.

Threads of OpenMP can sleep or spin while they wait for one another. `imsvd` lets them sleep, because
a spinning thread holds up all others as soon as another process needs its core. Both ways are measured
alone and beside the busy processes, in turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from imsvd.bench import step
from imsvd.bench.comparison import Benchmark, Case, Column, Contender, Numbers, Ratio, Row
from imsvd.errors import InputError
from imsvd.processors import usable_processors

_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:  # ends with the benchmark, however that ends
    for _ in range(10**6):
        pass
"""

CONTENDERS: dict[str, Contender[Mapping[str, str]]] = {
    "sleeping": Contender("threads sleep, as imsvd sets it", {"OMP_WAIT_POLICY": "PASSIVE"}),
    # 300,000 is what libgomp does without any setting; imsvd sets one before it can be left out.
    "spinning": Contender(
        "threads spin, as PyTorch does by itself",
        {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300000"},
    ),
}


@dataclass(frozen=True)
class BesideCase(Case):
    """A key of `step.NETWORKS`, trained for at least so many seconds beside busy processes."""

    network: str
    seconds: float
    busy: int


class _Beside(Benchmark[BesideCase]):
    case = BesideCase
    contenders = CONTENDERS
    heading = "Training beside busy processes"
    first_column = "threads"
    columns = (
        Column("images/s", "images_per_second", ",.0f"),
        Column("/ alone", "share"),
        Column("/ spinning", "gain"),
    )
    ratios = (
        Ratio("share", "images_per_second", {"busy": 0}),
        Ratio("gain", "images_per_second", {"contender": "spinning"}),
    )
    hidden = ("seconds",)

    def title(self, row: Row) -> str:
        return step.NETWORKS[row["network"]].title.replace(" (ms per image)", "")

    def label(self, case: BesideCase) -> str:
        """Return how threads wait, and what else runs."""
        where = f"beside {case.busy} busy" if case.busy else "alone"
        return f"{super().label(case)}, {where}"

    def variables(self, case: BesideCase) -> Mapping[str, str]:
        """Return how threads wait, and how many there are."""
        waiting: Mapping[str, str] = self.contenders[case.contender].make
        return {"OMP_NUM_THREADS": str(usable_processors()), **waiting}

    def measure(self, case: BesideCase) -> Numbers:
        torch.set_num_threads(usable_processors())
        torch.manual_seed(0)
        config = step.NETWORKS[case.network].config()
        build = step.CONTENDERS["ours"].make
        images = step.random_images(step.IMAGES, step.SIDE)
        with busy_processes(case.busy):
            timed = step.timed_steps(build(config, images, usable_processors()), case.seconds)
        return {"images_per_second": timed.steps * config.training.batch_size / timed.seconds}

    def facts(self, rows: Sequence[Row]) -> dict[str, str]:
        """Return how many processors were shared."""
        del rows
        return {"processors": str(usable_processors())}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` processors busy."""
    command = [sys.executable, "-S", "-c", _BUSY]
    children = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


BENCHMARK = _Beside()


def run(
    busy: int,
    networks: Sequence[str] = tuple(step.NETWORKS),
    seconds: float = 5.0,
    repeats: int = 3,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Measure training alone and beside `busy` processes, with both ways to wait, in turns."""
    if busy < 1:
        raise InputError(f"--beside {busy}: choose at least 1 busy process.")
    if os.name != "posix":
        raise InputError("--beside needs Linux or macOS, where busy processes know their parent.")
    step.check(networks, seconds)
    cases = [
        BesideCase(contender, network, seconds, others)
        for network in step.NETWORKS
        if network in networks
        for contender in CONTENDERS
        for others in (0, busy)
    ]
    return BENCHMARK.run(cases, repeats, console, output)
