"""One measurement of `imsvd bench step` in its own process: seconds of a step and of its parts.

Started as `python -m imsvd.bench.step_case CASE`, where CASE is the JSON of a `Case`; the last line
of standard output is the JSON of a `Measurement`. Time on the clock is counted, because the work is
spread over threads and processes.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from imsvd.bench.loss_forms import FORMS
from imsvd.bench.step_loops import CONTENDERS, random_images
from imsvd.config import Config, override
from imsvd.methods import IMSVDSettings
from imsvd.recipes import recipe

Network = Literal["small", "resnet18"]

IMAGES, SIDE = 2048, 32
_WARM_UP, _LEAST_STEPS, _LOSS_CALLS = 2, 2, 3


class Case(NamedTuple):
    """What to measure: a key of `CONTENDERS` on a key of `NETWORKS`."""

    contender: str
    network: Network
    cores: int
    seconds: float


class Measurement(NamedTuple):
    """Images trained on, the seconds that took, and what of them went to views and to the loss."""

    images: int
    seconds: float
    views: float
    loss: float


def _small() -> Config:
    return recipe("cifar10-cpu")


def _resnet18() -> Config:
    # The recipe's batch of 512 would take a minute a step on two cores.
    return override(recipe("cifar10"), ["training.batch_size=64"])


NETWORKS: dict[Network, Callable[[], Config]] = {"small": _small, "resnet18": _resnet18}


def measure(case: Case) -> Measurement:
    """Measure in this process, on `case.cores` threads."""
    torch.set_num_threads(case.cores)
    torch.manual_seed(0)
    config = NETWORKS[case.network]()
    contender = CONTENDERS[case.contender]
    loop = contender.build(config, random_images(IMAGES, SIDE), case.cores)
    for _ in range(_WARM_UP):
        next(loop)
    steps, views, start = 0, 0.0, time.perf_counter()
    while steps < _LEAST_STEPS or time.perf_counter() - start < case.seconds:
        views += next(loop)
        steps += 1
    seconds = time.perf_counter() - start
    del loop  # and its workers with it
    return Measurement(
        steps * config.training.batch_size,
        seconds,
        views,
        steps * loss_seconds(config, contender.loss),
    )


def loss_seconds(config: Config, form: str) -> float:
    """Forward and backward of the loss alone, on embeddings of the right size: the best of a few."""
    assert isinstance(config.method, IMSVDSettings)
    assert isinstance(config.method.units, int)
    shape = config.training.batch_size, config.method.projector[-1]
    best = float("inf")
    for _ in range(_LOSS_CALLS):
        first, second = (torch.randn(shape).requires_grad_() for _ in range(2))
        before = time.perf_counter()
        FORMS[form].step(first, second, config.method.units)
        best = min(best, time.perf_counter() - before)
    return best


def main() -> None:
    """Measure the case on the command line and print the result."""
    case = Case(**json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(measure(case)._asdict()) + "\n")


if __name__ == "__main__":
    main()
