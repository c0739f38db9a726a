"""Verdicts about the order of numbers, by cases that can be worked out by hand."""

import random

import pytest

from imsvd.grid.comparison import Spread, spread
from imsvd.reproduction.order import Order, Point, Verdict, compare_order, pooled_deviations
from tests.oracles.order import kendalls_tau


def point(
    row: str, column: str, paper: float, *ours: float, measure: str = "%", lower: bool = False
) -> Point:
    found = spread(ours)
    assert found is not None
    return Point(row, column, measure, paper, found, lower)


def verdicts(order: Order) -> list[tuple[str, str, Verdict]]:
    return [(c.larger.name, c.smaller.name, c.verdict) for c in order.comparisons]


def test_the_deviation_is_pooled_over_the_cells_of_a_measure() -> None:
    points = [
        Point("a", "1", "%", 1, Spread(10, 3.0, 2)),
        Point("a", "2", "%", 2, Spread(10, 1.0, 4)),
        Point("a", "3", "%", 3, Spread(10, None, 1)),
        Point("b", "1", "hours", 1, Spread(10, None, 1)),
    ]
    # (1 · 3² + 3 · 1² + 0) / (1 + 3 + 0) = 3
    assert pooled_deviations(points) == {"%": pytest.approx(3**0.5), "hours": None}


def test_the_four_verdicts() -> None:
    # Deviations 1, 1, 1, 1 (each pair of seeds is √2 apart), so that the pooled one is 1.
    half = 2**-0.5
    points = [
        point("top-1", "a", 60, 50 - half, 50 + half),
        point("top-1", "b", 70, 52 - half, 52 + half),
        point("top-1", "c", 80, 52.5 - half, 52.5 + half),
        point("top-1", "d", 90, 51.75 - half, 51.75 + half),
    ]
    order = compare_order(points, ["columns"])
    assert verdicts(order) == [
        ("top-1, b", "top-1, a", "kept"),
        ("top-1, c", "top-1, a", "kept"),
        ("top-1, d", "top-1, a", "kept"),
        ("top-1, c", "top-1, b", "kept within the spread"),
        ("top-1, d", "top-1, b", "reversed within the spread"),
        ("top-1, d", "top-1, c", "reversed within the spread"),
    ]
    assert list(order.counts.values()) == [3, 1, 2, 0]
    assert order.holds == "within the spread"
    assert order.tau == pytest.approx((4 - 2) / 6)
    (best,) = order.best
    assert best == ("top-1", ("d",), "c", "kept within the spread")
    worse = [*points[:3], point("top-1", "d", 90, 40 - half, 40 + half)]
    assert compare_order(worse, ["columns"]).holds == "no"
    assert compare_order(worse, ["columns"]).best[0].verdict == "another"


def test_one_seed_knows_no_spread() -> None:
    points = [point("x", "a", 1, 5.0), point("x", "b", 2, 5.1), point("x", "c", 3, 5.05)]
    order = compare_order(points, ["columns"])
    assert [comparison.verdict for comparison in order.comparisons] == ["kept", "kept", "reversed"]
    assert order.holds == "no"
    assert order.tau == pytest.approx(1 / 3)


def test_a_tie_of_the_paper_is_not_compared_and_one_of_ours_keeps_nothing() -> None:
    points = [point("x", "a", 2, 7.0), point("x", "b", 2, 1.0), point("x", "c", 1, 7.0)]
    order = compare_order(points, ["columns"])
    assert verdicts(order) == [
        ("x, a", "x, c", "reversed within the spread"),
        ("x, b", "x, c", "reversed"),
    ]
    assert order.tau == -0.5
    assert order.best[0] == ("x", ("a", "b"), "a", "kept")


def test_directions_and_measures_are_kept_apart() -> None:
    points = [
        point("VICReg", "1024", 62.0, 30.0),
        point("VICReg", "2048", 65.0, 35.0),
        point("IMSVD", "1024", 64.0, 33.0),
        point("IMSVD", "2048", 66.0, 34.0),
        point("hours", "1024", 7.0, 1.0, measure="s", lower=True),
        point("hours", "2048", 8.0, 2.0, measure="s", lower=True),
    ]
    by_row = compare_order(points, ["rows"])
    assert verdicts(by_row) == [
        ("IMSVD, 1024", "VICReg, 1024", "kept"),
        ("IMSVD, 2048", "VICReg, 2048", "reversed"),
    ]
    assert [(best.line, best.ours) for best in by_row.best] == [
        ("1024", "IMSVD"),
        ("2048", "VICReg"),
    ]
    by_column = compare_order(points, ["columns"])
    assert [comparison.verdict for comparison in by_column.comparisons] == ["kept"] * 3
    assert by_column.best[-1] == ("hours", ("1024",), "1024", "kept")
    both = compare_order(points, ["rows", "columns"])
    assert len(both.comparisons) == 5
    assert both.tau == pytest.approx(3 / 5)


def test_nothing_to_compare() -> None:
    order = compare_order([point("x", "a", 1, 1.0)], ["rows", "columns"])
    assert order.tau is None
    assert order.holds == "unknown"
    assert order.best == []


@pytest.mark.parametrize("seed", range(5))
def test_tau_is_kendalls(seed: int) -> None:
    draw = random.Random(seed)
    paper = [draw.randrange(6) for _ in range(9)]
    ours = [draw.randrange(6) for _ in range(9)]
    points = [
        point("x", str(number), one, other)
        for number, (one, other) in enumerate(zip(paper, ours, strict=True))
    ]
    assert compare_order(points, ["columns"]).tau == pytest.approx(kendalls_tau(paper, ours))
