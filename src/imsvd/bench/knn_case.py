"""One measurement of `imsvd bench knn` in its own process: time and peak memory of a search.

Started as `python -m imsvd.bench.knn_case CASE`, where CASE is the JSON of a `Case`; the last line of
standard output is the JSON of a `Measurement`. Every search gets the same features of length 1.
"""

import json
import sys
import time
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd.bench.knn_searches import SEARCHES
from imsvd.bench.peak_memory import peak, reset_peak


class Case(NamedTuple):
    """What to measure."""

    search: str
    queries: int
    bank: int
    width: int
    neighbors: int
    threads: int


class Measurement(NamedTuple):
    """What a search took, and what it found.

    Attributes:
        seconds: from features to neighbors, an index included.
        extra_bytes: at the peak, beyond the process with the features in it.
        total_bytes: at the peak, of the whole process.
        mean_similarity: over all neighbors of all queries, by which answers are compared.
    """

    seconds: float
    extra_bytes: int
    total_bytes: int
    mean_similarity: float


def measure(case: Case) -> Measurement:
    """Measure in this process."""
    torch.set_num_threads(case.threads)
    search = SEARCHES[case.search].find
    # Small and complete: libraries are loaded and threads started before the baseline.
    small = _features(256 + case.neighbors, case.width, seed=2)
    search(small, small, case.neighbors, case.threads)
    bank = _features(case.bank, case.width, seed=0)
    queries = _features(case.queries, case.width, seed=1)
    baseline = reset_peak()
    start = time.perf_counter()
    similarities = search(bank, queries, case.neighbors, case.threads)
    seconds = time.perf_counter() - start
    largest = peak()
    mean = similarities.double().mean().item()
    return Measurement(seconds, largest - baseline, largest, mean)


def _features(rows: int, width: int, seed: int) -> Tensor:
    features = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return F.normalize(features, out=features)


def main() -> None:
    """Measure the case on the command line and print the result."""
    case = Case(**json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(measure(case)._asdict()) + "\n")


if __name__ == "__main__":
    main()
