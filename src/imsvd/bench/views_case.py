"""One measurement of `imsvd bench views` in its own process: images a second on one core.

Started as `python -m imsvd.bench.views_case CASE`, where CASE is the JSON of a `Case`; the last
line of standard output is the JSON of a `Measurement`. Processor time is counted rather than time
on the clock, so that other programs on the machine do not count.
"""

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from imsvd.bench.views_pipelines import CONTENDERS, Items, Task
from imsvd.datasets import ImageFolderSource
from imsvd.views import cifar_views, paper_views

MAX_PHOTOGRAPHS = 500
MAX_SMALL = 4096
_BATCH = {"photographs": 32, "small": 256}


class Case(NamedTuple):
    """What to measure: a key of `CONTENDERS`, on the images of a folder."""

    contender: str
    task: Task
    folder: str
    seconds: float


class Measurement(NamedTuple):
    """Images made into two views each, and the processor seconds that took."""

    images: int
    seconds: float


def measure(case: Case) -> Measurement:
    """Measure in this process, on one thread, with the files already in memory."""
    torch.set_num_threads(1)
    settings = paper_views() if case.task == "photographs" else cifar_views()
    items, batch = read_items(case.task, Path(case.folder)), _BATCH[case.task]
    pipeline = CONTENDERS[case.contender].build(settings, case.task)
    pipeline(items[:batch])
    images, seconds, start = 0, 0.0, 0
    # Whole passes, so that every contender sees each image equally often.
    while seconds < case.seconds or start:
        chosen = items[start : start + batch]
        before = time.process_time()
        pipeline(chosen)
        seconds += time.process_time() - before
        images += len(chosen)
        start = start + batch if start + batch < len(items) else 0
    return Measurement(images, seconds)


def read_items(task: Task, folder: Path) -> Items:
    """Images spread evenly over a folder: as files, or small ones as (n, height, width, 3)."""
    source = ImageFolderSource(folder)
    limit = MAX_PHOTOGRAPHS if task == "photographs" else MAX_SMALL
    spread = np.linspace(0, len(source) - 1, min(limit, len(source))).astype(int).tolist()
    if task == "photographs":
        return [source.encoded(index) for index in spread]
    return np.stack([source.read(index).permute(1, 2, 0).numpy() for index in spread])


def main() -> None:
    """Measure the case on the command line and print the result."""
    case = Case(**json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(measure(case)._asdict()) + "\n")


if __name__ == "__main__":
    main()
