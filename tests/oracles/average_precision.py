"""VOC's average precision by the letter: one threshold, one recall at a time."""

from collections.abc import Sequence
from fractions import Fraction


def _points(scores: Sequence[float], positives: Sequence[bool]) -> list[tuple[Fraction, Fraction]]:
    """(recall, precision) of calling positive all that scores at least as high as some image."""
    points = []
    for threshold in scores:
        chosen = [good for score, good in zip(scores, positives, strict=True) if score >= threshold]
        points.append((Fraction(sum(chosen), sum(positives)), Fraction(sum(chosen), len(chosen))))
    return points


def eleven_point(scores: Sequence[float], positives: Sequence[bool]) -> float:
    total = Fraction(0)
    for tenth in range(11):
        reached = [p for r, p in _points(scores, positives) if r >= Fraction(tenth, 10)]
        total += max(reached, default=Fraction(0))
    return float(total / 11)


def all_point(scores: Sequence[float], positives: Sequence[bool]) -> float:
    points = _points(scores, positives)
    area, before = Fraction(0), Fraction(0)
    for recall in sorted({r for r, _ in points}):
        area += (recall - before) * max(p for r, p in points if r >= recall)
        before = recall
    return float(area)
