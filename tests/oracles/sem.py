"""Simplicial embeddings, literally: one sample and one simplex at a time."""

import torch
from torch import Tensor


def simplices(logits: Tensor, units: int, temperature: float) -> Tensor:
    """Eq. 1: exp(z_ij / τ) / Σ_k exp(z_ik / τ), concatenated over the simplices i."""
    rows = []
    for sample in logits:
        parts = []
        for first in range(0, len(sample), units):
            powers = [torch.exp(sample[first + j] / temperature) for j in range(units)]
            total = sum(powers, sample.new_zeros(()))
            parts += [power / total for power in powers]
        rows.append(torch.stack(parts))
    return torch.stack(rows)
