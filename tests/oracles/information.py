"""The information measures of the paper, literally: loops over samples, variables and units."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor


def soft_discretize(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """Eq. 1."""
    rows = []
    for row in logits:
        exponentials = [part.exp() / part.exp().sum() for part in torch.split(row, list(sizes))]
        rows.append(torch.cat(exponentials))
    return torch.stack(rows)


def joint_entropy(q: Tensor, variables: Sequence[int], sizes: Sequence[int]) -> float:
    """Eqs. 3 and 6."""
    parts = [part.tolist() for part in torch.split(q, list(sizes), 1)]
    total = 0.0
    for units in itertools.product(*(range(sizes[m]) for m in variables)):
        cell = 0.0
        for i in range(len(q)):
            cell += math.prod(parts[m][i][d] for m, d in zip(variables, units, strict=True))
        cell /= len(q)
        total -= cell * math.log(cell) if cell > 0 else 0.0
    return total


def mean_entropy(q: Tensor, sizes: Sequence[int], order: int) -> float:
    """Eq. 5, without its extra minus sign."""
    subsets = list(itertools.combinations(range(len(sizes)), order))
    return sum(joint_entropy(q, subset, sizes) for subset in subsets) / len(subsets)


def mutual_information(q: Tensor, m1: int, m2: int, sizes: Sequence[int]) -> float:
    """S(m1) + S(m2) - S(m1, m2)."""
    singles = joint_entropy(q, [m1], sizes) + joint_entropy(q, [m2], sizes)
    return singles - joint_entropy(q, [m1, m2], sizes)
