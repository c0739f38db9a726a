"""Literal forms of the statistics of codes: loops, enumeration and exact fractions."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import comb, exp, log2, sqrt

Code = tuple[int, ...]


def pearson(first: Sequence[int], second: Sequence[int]) -> float:
    """Σ (observed - expected)² / expected over both sets and all units that occur."""
    total = Counter(first) + Counter(second)
    result = 0.0
    for units, images in ((Counter(first), len(first)), (Counter(second), len(second))):
        for unit, count in total.items():
            expected = count * images / (len(first) + len(second))
            result += (units[unit] - expected) ** 2 / expected
    return result


def mean_statistic(first: Sequence[Code], second: Sequence[Code]) -> float:
    """Mean over variables of (X² - k) / √(2k)."""
    values = []
    for a, b in zip(zip(*first, strict=True), zip(*second, strict=True), strict=True):
        k = len(set(a) | set(b)) - 1
        values.append((pearson(a, b) - k) / sqrt(2 * k) if k else 0.0)
    return sum(values) / len(values)


def exact_p_value(first: Sequence[Code], second: Sequence[Code]) -> float:
    """Share of all ways to divide the images whose mean statistic is at least the observed one."""
    pooled, observed = [*first, *second], mean_statistic(first, second)
    hits = ways = 0
    for chosen in combinations(range(len(pooled)), len(first)):
        a = [pooled[i] for i in chosen]
        b = [pooled[i] for i in range(len(pooled)) if i not in chosen]
        hits += mean_statistic(a, b) >= observed - 1e-9
        ways += 1
    return hits / ways


def hypergeometric_tails(k: int, a: int, b: int, n: int) -> tuple[Fraction, Fraction]:
    """P(X ≤ k) and P(X ≥ k) for the number of images with both units."""
    probabilities = {
        x: Fraction(comb(a, x) * comb(n - a, b - x), comb(n, b))
        for x in range(max(0, a + b - n), min(a, b) + 1)
    }
    low = sum((p for x, p in probabilities.items() if x <= k), Fraction(0))
    return low, sum((p for x, p in probabilities.items() if x >= k), Fraction(0))


def binomial_tails(k: int, n: int, units: int) -> tuple[Fraction, Fraction]:
    """P(X ≤ k) and P(X ≥ k) for the number of images with one of `units` units, used evenly."""
    p = Fraction(1, units)
    probabilities = [comb(n, x) * p**x * (1 - p) ** (n - x) for x in range(n + 1)]
    return sum(probabilities[: k + 1], Fraction(0)), sum(probabilities[k:], Fraction(0))


def yekutieli(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Yekutieli's adjusted p-values, from the definition of the step-up procedure."""
    tests = len(p_values)
    harmonic = sum(1 / i for i in range(1, tests + 1))
    ranked = sorted(p_values)
    adjusted = []
    for p in p_values:
        later = [ranked[r] * tests * harmonic / (r + 1) for r in range(tests) if ranked[r] >= p]
        adjusted.append(min(1.0, *later))
    return adjusted


def facility_location(codes: Sequence[Code], chosen: Sequence[int]) -> float:
    """Σ_j max_i exp(-8 h(i, j) / M)."""

    def similarity(a: Code, b: Code) -> float:
        return exp(-8 * sum(x != y for x, y in zip(a, b, strict=True)) / len(a))

    return sum(max(similarity(codes[i], code) for i in chosen) for code in codes)


def greedy(codes: Sequence[Code], count: int) -> list[int]:
    """Choose images one by one, always the first of those that add most."""
    chosen: list[int] = []
    for _ in range(count):
        left = [i for i in range(len(codes)) if i not in chosen]
        chosen.append(max(left, key=lambda i: round(facility_location(codes, [*chosen, i]), 5)))
    return chosen


def mutual_information(a: Sequence[int], b: Sequence[int]) -> float:
    """Plug-in mutual information in bits, less what independent units show by chance."""
    n = len(a)
    both, first, second = Counter(zip(a, b, strict=True)), Counter(a), Counter(b)
    plain = sum(c / n * log2(c * n / (first[x] * second[y])) for (x, y), c in both.items())
    return max(0.0, plain - (len(first) - 1) * (len(second) - 1) / (2 * n) * log2(exp(1)))
