"""SwAV's loss, literally: Q by alternate scaling of rows and columns, and Eqs. 1 and 2 in loops."""

from collections.abc import Sequence

import torch
from torch import Tensor


def codes(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Q* of Eq. 5 as (samples, prototypes), scaled so that each sample's code sums to 1."""
    samples, prototypes = scores.shape
    cells = (scores.detach() / epsilon).exp()
    for _ in range(iterations):
        for k in range(prototypes):
            cells[:, k] = cells[:, k] / cells[:, k].sum() / prototypes
        for i in range(samples):
            cells[i] = cells[i] / cells[i].sum() / samples
    return cells * samples


def loss(
    scores: Sequence[Tensor],
    temperature: float,
    epsilon: float,
    iterations: int,
    earlier: Sequence[Tensor] = (),
) -> Tensor:
    total, pairs = torch.zeros((), dtype=scores[0].dtype), 0
    for s in (0, 1):
        together = torch.cat([scores[s], earlier[s]]) if earlier else scores[s]
        code = codes(together, epsilon, iterations)
        for t, view in enumerate(scores):
            if t == s:
                continue
            pairs += 1
            for i, row in enumerate(view):
                exponentials = (row / temperature).exp()
                prediction = exponentials / exponentials.sum()
                total = total - (code[i] * prediction.log()).sum() / len(view)
    return total / pairs
