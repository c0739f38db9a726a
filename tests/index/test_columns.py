import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.index.columns import (
    LEVEL_PLANES,
    LEVELS,
    at_least,
    confidence_at,
    equal_to,
    level_of,
    members,
    pack,
    planes_needed,
    unpack,
)


@pytest.mark.parametrize(("values", "planes"), [(2, 1), (3, 2), (4, 2), (5, 3), (256, 8), (257, 9)])
def test_planes_needed_for_numbers_below(values: int, planes: int) -> None:
    assert planes_needed(values) == planes
    numbers = np.arange(values, dtype=np.uint16)
    assert (unpack(pack(numbers, planes), values) == numbers).all()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 70_000), min_size=1, max_size=40),
    st.integers(0, 140_000),
)
def test_sets_are_those_of_the_numbers(numbers: list[int], wanted: int) -> None:
    column = np.array(numbers, dtype=np.uint32)
    planes = pack(column, planes_needed(max(numbers) + 1))
    count = len(numbers)
    assert (unpack(planes, count) == column).all()
    for number in (wanted, numbers[0]):
        assert (members(equal_to(planes, number), count) == (column == number)).all()
        assert (members(at_least(planes, number), count) == (column >= number)).all()


def test_comparing_a_kept_confidence_with_a_level_is_exact() -> None:
    assert len(LEVELS) < 2**LEVEL_PLANES
    confidences = np.concatenate([np.linspace(0, 1, 2001, dtype=np.float32), LEVELS])
    kept = level_of(confidences)
    for number, level in enumerate(LEVELS):
        assert ((kept > number) == (confidences > level)).all(), level
    assert np.abs(confidence_at(kept) - confidences).max() <= 0.0251
