"""The IMSVD loss, literally: the whole joint matrix, a mask, and autograd through everything."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tests.oracles.information import soft_discretize


class Terms(NamedTuple):
    invariance: Tensor
    cross_entropy: Tensor
    diagonal_entropy: Tensor
    off_diagonal_entropy: Tensor


def cross_joint(q1: Tensor, q2: Tensor) -> Tensor:
    """Eq. 10, sample by sample."""
    total = torch.zeros(q1.shape[1], q2.shape[1], dtype=q1.dtype)
    for first, second in zip(q1, q2, strict=True):
        total = total + torch.outer(first, second)
    return total / len(q1)


def terms_of_probabilities(
    q1: Tensor, q2: Tensor, sizes: Sequence[int], normalization: str = "averaged"
) -> Terms:
    """Eq. 11 from q, with P^c in memory and the cells picked one block at a time."""
    num_variables = len(sizes)
    similarity = cross_entropy = torch.zeros((), dtype=q1.dtype)
    pairs = zip(torch.split(q1, list(sizes), 1), torch.split(q2, list(sizes), 1), strict=True)
    for first, second in pairs:
        similarity = similarity - (first * second).sum(1).log().sum()
        cross_entropy = cross_entropy - (first * second.log()).sum()
    cells = cross_joint(q1, q2)
    diagonal = off_diagonal = torch.zeros((), dtype=q1.dtype)
    for m1, rows in enumerate(torch.split(cells, list(sizes), 0)):
        for m2, block in enumerate(torch.split(rows, list(sizes), 1)):
            if m1 == m2:
                on_diagonal = block.diagonal()
                diagonal = diagonal + (on_diagonal * on_diagonal.log()).sum()
            else:
                off_diagonal = off_diagonal + (block * block.log()).sum()
    samples = len(q1) * num_variables
    averaged = normalization == "averaged"
    diagonal_divisor = num_variables if averaged else num_variables**2
    pairs_divisor = max(1, num_variables * (num_variables - 1)) if averaged else num_variables**2
    return Terms(
        similarity / samples,
        cross_entropy / samples,
        diagonal / diagonal_divisor,
        off_diagonal / pairs_divisor,
    )


def terms(
    first: Tensor, second: Tensor, sizes: Sequence[int], normalization: str = "averaged"
) -> Terms:
    """Eqs. 1 and 11, term by term."""
    q1, q2 = soft_discretize(first, sizes), soft_discretize(second, sizes)
    return terms_of_probabilities(q1, q2, sizes, normalization)


def loss(
    first: Tensor,
    second: Tensor,
    sizes: Sequence[int],
    *,
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
    invariance: str = "inner_product",
    normalization: str = "averaged",
    joint: str = "cross",
) -> Tensor:
    """Eqs. 1 and 11, weighted; with `joint="within"`, pairs of variables within each view (Eq. 9)."""
    found = terms(first, second, sizes, normalization)
    similarity = found.invariance if invariance == "inner_product" else found.cross_entropy
    off_diagonal = found.off_diagonal_entropy
    if joint == "within":
        alone = [terms(view, view, sizes, normalization) for view in (first, second)]
        off_diagonal = (alone[0].off_diagonal_entropy + alone[1].off_diagonal_entropy) / 2
    values = (similarity, found.diagonal_entropy, off_diagonal)
    return torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum()
