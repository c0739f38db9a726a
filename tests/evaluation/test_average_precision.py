import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.evaluation.average_precision import (
    all_point_average_precision,
    eleven_point_average_precision,
)
from tests.oracles import average_precision as oracle

RANKINGS = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30).filter(
    lambda ranking: any(positive for _, positive in ranking)
)


def both(scores: list[float], positives: list[int]) -> tuple[float, float]:
    values, labels = np.array(scores, dtype=float), np.array(positives, dtype=bool)
    return (
        eleven_point_average_precision(values, labels),
        all_point_average_precision(values, labels),
    )


def test_by_hand() -> None:
    # Precisions 1, 1/2, 2/3, 3/4, 3/5 at recalls 1/3, 1/3, 2/3, 1, 1: the best at recall 0 to 0.3
    # or more is 1, at 0.4 to 1 it is 3/4.
    eleven, every = both([5, 4, 3, 2, 1], [1, 0, 1, 1, 0])
    assert eleven == pytest.approx((4 * 1 + 7 * 0.75) / 11, abs=1e-12)
    assert every == pytest.approx(1 / 3 + 2 / 3 * 0.75, abs=1e-12)


def test_perfect_and_worst_rankings() -> None:
    assert both([2, 1, 0], [1, 1, 0]) == (1.0, 1.0)
    assert both([2, 1, 0], [0, 0, 1]) == pytest.approx((1 / 3, 1 / 3))


def test_a_recall_of_three_tenths_is_three_tenths() -> None:
    # 0.1 + 0.1 + 0.1 > 3/10 in floating point, which would lose the fourth point.
    labels = [1] * 3 + [0] * 10 + [1] * 7
    eleven, _ = both(list(range(20, 0, -1)), labels)
    assert eleven == pytest.approx((4 * 1 + 7 * 0.5) / 11, abs=1e-12)


def test_ties_share_a_rank_whatever_their_order() -> None:
    assert both([1, 1, 1, 1], [1, 0, 0, 1]) == both([1, 1, 1, 1], [0, 1, 1, 0]) == (0.5, 0.5)


@settings(max_examples=100, deadline=None)
@given(RANKINGS)
def test_both_equal_the_literal_definitions(ranking: list[tuple[int, bool]]) -> None:
    scores = [float(score) for score, _ in ranking]
    positives = [positive for _, positive in ranking]
    eleven, every = both(scores, [int(positive) for positive in positives])
    assert eleven == pytest.approx(oracle.eleven_point(scores, positives), abs=1e-12)
    assert every == pytest.approx(oracle.all_point(scores, positives), abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "positives", "phrase"),
    [
        ([1.0, 2.0], [0, 0], "without positive"),
        ([1.0], [1, 0], "labels"),
        ([1.0, float("nan")], [1, 0], "not finite"),
    ],
)
def test_what_has_no_average_precision(
    scores: list[float], positives: list[int], phrase: str
) -> None:
    with pytest.raises(ValueError, match=phrase):
        both(scores, positives)
