"""Local aggregation, literally: sets of neighbors and sums of probabilities."""

import torch
from torch import Tensor

from tests.oracles.npid import unit


def background(embedding: Tensor, bank: Tensor, own: int, k: int) -> list[int]:
    """The own image and its k - 1 nearest others."""
    similarity = (bank @ unit(embedding)).tolist()
    others = sorted((j for j in range(len(bank)) if j != own), key=lambda j: -similarity[j])
    return [own, *others[: k - 1]]


def close(labels: Tensor, own: int) -> set[int]:
    """All images that share a cluster with the own one in any clustering."""
    found = set()
    for row in labels.tolist():
        found |= {j for j, label in enumerate(row) if label == row[own]}
    return found


def loss(
    embedding: Tensor, samples: Tensor, bank: Tensor, labels: Tensor, k: int, temperature: float
) -> Tensor:
    """Eqs. 1 to 5, averaged."""
    total = torch.zeros((), dtype=embedding.dtype)
    for v, own in zip(embedding, samples.tolist(), strict=True):
        powers = [(row @ unit(v) / temperature).exp() for row in bank]
        whole = torch.stack(powers).sum()
        around = background(v.detach(), bank, own, k)
        near = [j for j in around if j in close(labels, own)]
        p_background = torch.stack([powers[j] / whole for j in around]).sum()
        p_close = torch.stack([powers[j] / whole for j in near]).sum()
        total = total - (p_close / p_background).log()
    return total / len(embedding)
