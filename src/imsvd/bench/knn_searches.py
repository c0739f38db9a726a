"""The searches that `imsvd bench knn` compares: exact, by cosine, from features to neighbors."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from imsvd.evaluation.neighbors import nearest_neighbors

Find = Callable[[Tensor, Tensor, int, int], Tensor]
"""Bank, queries (·, width) of length 1, k and threads; gives (queries, k) similarities."""


class Search(NamedTuple):
    """One way to search, what to call it and the package it needs."""

    label: str
    find: Find
    needs: str = ""


def _ours(bank: Tensor, queries: Tensor, neighbors: int, _threads: int) -> Tensor:
    return nearest_neighbors(bank, queries, neighbors).similarities


def _faiss(bank: Tensor, queries: Tensor, neighbors: int, threads: int) -> Tensor:
    import faiss  # noqa: PLC0415

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(bank.shape[1])
    index.add(bank.numpy())
    similarities, _ = index.search(queries.numpy(), neighbors)
    return torch.from_numpy(similarities)


def _scikit_learn(bank: Tensor, queries: Tensor, neighbors: int, _threads: int) -> Tensor:
    from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415

    # Its products and its threads are those of the environment: OMP_NUM_THREADS.
    fitted = NearestNeighbors(n_neighbors=neighbors, algorithm="brute", metric="cosine")
    distances, _ = fitted.fit(bank.numpy()).kneighbors(queries.numpy())
    return 1 - torch.from_numpy(distances)


SEARCHES = {
    "ours": Search("imsvd", _ours),
    "faiss": Search("faiss IndexFlatIP", _faiss, "faiss"),
    "scikit-learn": Search("scikit-learn brute, cosine", _scikit_learn, "sklearn"),
}
