"""Kendall's tau by its definition: over all pairs, the mean product of the signs of both differences."""

from collections.abc import Sequence


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def kendalls_tau(paper: Sequence[float], ours: Sequence[float]) -> float:
    """Pairs that are equal in the paper are left out."""
    products = [
        sign(paper[i] - paper[j]) * sign(ours[i] - ours[j])
        for i in range(len(paper))
        for j in range(i)
        if paper[i] != paper[j]
    ]
    return sum(products) / len(products)
