"""Whether our numbers stand in the order of the paper's.

A comparison is a pair of cells that the paper sets against each other: two rows of a column or two
columns of a row, always of the same measure. Where the paper has a tie, it makes none. Ours keeps
it if the difference has the same sign. It is within the spread if the difference is at most the
deviation over seeds, pooled over all cells of that measure; whatever its sign, nothing is then
shown. Kendall's tau is (kept - reversed) / comparisons, whatever the spread; a tie of ours is
neither kept nor reversed in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

from imsvd.grid.comparison import Spread
from imsvd.reproduction.experiment import Direction

Verdict = Literal["kept", "kept within the spread", "reversed within the spread", "reversed"]
VERDICTS: tuple[Verdict, ...] = (
    "kept",
    "kept within the spread",
    "reversed within the spread",
    "reversed",
)


class Point(NamedTuple):
    """A cell that both the paper and we have a value of."""

    row: str
    column: str
    measure: str
    paper: float
    ours: Spread
    lower_is_better: bool = False

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.row}, {self.column}"


class Comparison(NamedTuple):
    """A pair of cells; in the paper the first has the larger value."""

    larger: Point
    smaller: Point
    verdict: Verdict

    @property
    def sign(self) -> int:
        """1 if ours has the paper's sign, -1 if the other, 0 for a tie."""
        difference = self.larger.ours.mean - self.smaller.ours.mean
        return (difference > 0) - (difference < 0)


class Best(NamedTuple):
    """The best of a line of the table, a column's rows or a row's columns."""

    line: str
    paper: tuple[str, ...]
    """Several where the paper's best are equal."""
    ours: str
    verdict: Literal["kept", "kept within the spread", "another"]


class Order(NamedTuple):
    """All comparisons of a table."""

    comparisons: list[Comparison]
    best: list[Best]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many comparisons have each verdict."""
        found = [comparison.verdict for comparison in self.comparisons]
        return {verdict: found.count(verdict) for verdict in VERDICTS}

    @property
    def tau(self) -> float | None:
        """Kendall's tau over the comparisons; None if there are none."""
        if not self.comparisons:
            return None
        return sum(comparison.sign for comparison in self.comparisons) / len(self.comparisons)

    @property
    def holds(self) -> Literal["yes", "within the spread", "no", "unknown"]:
        """Whether the paper's order holds as a whole: no comparison is reversed, or none clearly."""
        counts = self.counts
        if not self.comparisons:
            return "unknown"
        if counts["reversed"]:
            return "no"
        return "within the spread" if counts["reversed within the spread"] else "yes"


def compare_order(points: Sequence[Point], directions: Sequence[Direction]) -> Order:
    """Compare our values with the paper's, along the directions in which the paper compares."""
    deviations = pooled_deviations(points)
    comparisons, best = [], []
    for direction in directions:
        for line, members in _lines(points, direction).items():
            deviation = deviations[members[0].measure]
            comparisons += [
                _compare(one, other, deviation)
                for one, other in combinations(members, 2)
                if one.paper != other.paper
            ]
            if len(members) > 1:
                best.append(_best(line, members, direction, deviation))
    return Order(comparisons, best)


def pooled_deviations(points: Iterable[Point]) -> dict[str, float | None]:
    """Return the deviation over seeds of every measure, pooled over its cells; None if unknown.

    The root of the mean of the squared deviations, each weighted by its number of seeds - 1.
    """
    squares: dict[str, float] = {}
    degrees: dict[str, int] = {}
    for point in points:
        spread, freedom = point.ours, point.ours.number - 1
        squares[point.measure] = (
            squares.get(point.measure, 0.0) + freedom * (spread.deviation or 0.0) ** 2
        )
        degrees[point.measure] = degrees.get(point.measure, 0) + freedom
    return {
        measure: math.sqrt(total / degrees[measure]) if degrees[measure] else None
        for measure, total in squares.items()
    }


def _lines(points: Sequence[Point], direction: Direction) -> Mapping[str, list[Point]]:
    """The cells that are compared with each other, by the name of their column or row.

    A column can hold several measures, such as accuracies and hours; each is a line of its own.
    """
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        name = point.column if direction == "rows" else point.row
        lines.setdefault((name, point.measure), []).append(point)
    named: dict[str, list[Point]] = {}
    for (name, measure), members in lines.items():
        named[name if name not in named else f"{name} ({measure})"] = members
    return named


def _compare(one: Point, other: Point, deviation: float | None) -> Comparison:
    larger, smaller = (one, other) if one.paper > other.paper else (other, one)
    difference = larger.ours.mean - smaller.ours.mean
    within = deviation is not None and abs(difference) <= deviation
    if difference > 0:
        return Comparison(larger, smaller, "kept within the spread" if within else "kept")
    verdict: Verdict = "reversed within the spread" if within or difference == 0 else "reversed"
    return Comparison(larger, smaller, verdict)


def _best(
    line: str, members: Sequence[Point], direction: Direction, deviation: float | None
) -> Best:
    pick = min if members[0].lower_is_better else max
    top = pick(member.paper for member in members)
    favorites = [member for member in members if member.paper == top]
    ours = pick(members, key=lambda member: member.ours.mean)
    gap = min(abs(ours.ours.mean - favorite.ours.mean) for favorite in favorites)

    def label(point: Point) -> str:
        return point.row if direction == "rows" else point.column

    verdict: Literal["kept", "kept within the spread", "another"] = "another"
    if ours in favorites:
        verdict = "kept"
    elif deviation is not None and gap <= deviation:
        verdict = "kept within the spread"
    return Best(line, tuple(map(label, favorites)), label(ours), verdict)
