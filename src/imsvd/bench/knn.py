"""`imsvd bench knn`: our exact nearest-neighbor search against torch.topk, faiss and scikit-learn.

All searches find the same neighbors of random features of length 1, by cosine similarity. The time
is that from features to neighbors, including the building of an index.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

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
from imsvd.evaluation.neighbors import nearest_neighbors

# Mean similarities of exact searches differ only by rounding.
_SAME_ANSWER = 1e-5


Find = Callable[[Tensor, Tensor, int, int], Tensor]
"""Takes bank, queries, number of neighbors and threads; returns (queries, neighbors) similarities."""


def _ours(bank: Tensor, queries: Tensor, neighbors: int, _threads: int) -> Tensor:
    return nearest_neighbors(bank, queries, neighbors).similarities


def _topk(mebibytes: int) -> Find:
    """Return a search that sorts out the rows of similarities to the whole bank, a chunk at a time."""

    def find(bank: Tensor, queries: Tensor, neighbors: int, _threads: int) -> Tensor:
        rows = max(1, mebibytes * 2**20 // (bank.element_size() * len(bank)))
        found = [(chunk @ bank.T).topk(neighbors, dim=1) for chunk in torch.split(queries, rows)]
        torch.cat([best.indices for best in found])
        return torch.cat([best.values for best in found])

    return find


def _faiss(bank: Tensor, queries: Tensor, neighbors: int, threads: int) -> Tensor:
    import faiss  # noqa: PLC0415

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(bank.shape[1])
    index.add(bank.numpy())
    similarities, _ = index.search(queries.numpy(), neighbors)
    return torch.from_numpy(similarities)


def _scikit_learn(bank: Tensor, queries: Tensor, neighbors: int, _threads: int) -> Tensor:
    from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415

    # Takes its number of threads from OMP_NUM_THREADS.
    fitted = NearestNeighbors(n_neighbors=neighbors, algorithm="brute", metric="cosine")
    distances, _ = fitted.fit(bank.numpy()).kneighbors(queries.numpy())
    return 1 - torch.from_numpy(distances)


SEARCHES: dict[str, Contender[Find]] = {
    "ours": Contender("imsvd", _ours),
    "topk-64": Contender("torch.topk, 64-MiB chunks", _topk(64)),
    "topk-256": Contender("torch.topk, 256-MiB chunks", _topk(256)),
    "faiss": Contender("faiss IndexFlatIP", _faiss, ("faiss",)),
    "scikit-learn": Contender("scikit-learn brute, cosine", _scikit_learn, ("sklearn",)),
}


@dataclass(frozen=True)
class SearchCase(Case):
    """A search and its size."""

    queries: int
    bank: int
    width: int
    neighbors: int
    threads: int


class _Knn(Benchmark[SearchCase]):
    case = SearchCase
    contenders = SEARCHES
    heading = "Nearest neighbors"
    first_column = "search"
    columns = (
        Column("seconds", "seconds"),
        Column("time / ours", "times_ours"),
        Column("MiB beside the features", "extra_mib", ".0f"),
        Column("MiB in all", "total_mib", ".0f"),
    )
    ratios = (Ratio("times_ours", "seconds", {"contender": "ours"}),)
    largest = ("extra_mib", "total_mib")

    def title(self, row: Row) -> str:
        return (
            f"The {row['neighbors']} nearest of {row['bank']:,} features for {row['queries']:,} "
            f"queries, width {row['width']}, {row['threads']} threads"
        )

    def measure(self, case: SearchCase) -> Numbers:
        torch.set_num_threads(case.threads)
        find = SEARCHES[case.contender].make
        # Small but complete: loads libraries and starts threads before the baseline.
        small = _features(256 + case.neighbors, case.width, seed=2)
        find(small, small, case.neighbors, case.threads)
        bank = _features(case.bank, case.width, seed=0)
        queries = _features(case.queries, case.width, seed=1)
        baseline = reset_peak()
        start = time.perf_counter()
        similarities = find(bank, queries, case.neighbors, case.threads)
        seconds = time.perf_counter() - start
        largest = peak()
        return {
            "seconds": seconds,
            "extra_mib": (largest - baseline) / 2**20,
            "total_mib": largest / 2**20,
            "mean_similarity": similarities.double().mean().item(),
        }

    def derive(self, found: dict[SearchCase, Numbers]) -> dict[SearchCase, Numbers]:
        # Searches that found different neighbors are not compared.
        means = {self.label(case): numbers["mean_similarity"] for case, numbers in found.items()}
        if max(means.values()) - min(means.values()) > _SAME_ANSWER:
            raise RuntimeError(f"The searches disagree about the mean similarity: {means}")
        return found


def _features(rows: int, width: int, seed: int) -> Tensor:
    features = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return F.normalize(features, out=features)


BENCHMARK = _Knn()


def run(
    queries: int = 10_000,
    bank: int = 200_000,
    width: int = 512,
    neighbors: int = 200,
    repeats: int = 3,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Compare searches for the `neighbors` nearest of `bank` features of `width`."""
    if min(queries, width, neighbors) < 1 or neighbors > bank:
        raise InputError("all numbers must be at least 1, and neighbors at most bank.")
    threads = os.cpu_count() or 1
    cases = [SearchCase(name, queries, bank, width, neighbors, threads) for name in SEARCHES]
    return BENCHMARK.run(cases, repeats, console, output)
