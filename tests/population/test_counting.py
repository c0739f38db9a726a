import numpy as np
import pytest

from imsvd.errors import InputError
from imsvd.population.counting import (
    check_codes,
    pair_bits,
    pair_counts,
    spanning_tree,
    unit_counts,
)
from tests.oracles.population import mutual_information
from tests.population.made_up import dependent, independent

UNITS = (3, 2, 4)


def test_counts_are_those_of_loops_over_images() -> None:
    codes = independent(50, UNITS)
    starts = (0, 3, 5)
    single, pairs = np.zeros(9, int), np.zeros((9, 9), int)
    for code in codes.tolist():
        taken = [start + unit for start, unit in zip(starts, code, strict=True)]
        single[taken] += 1
        pairs[np.ix_(taken, taken)] += 1
    np.testing.assert_array_equal(unit_counts(codes, UNITS), single)
    np.testing.assert_array_equal(pair_counts(codes, UNITS), pairs)


def test_mutual_information_is_the_plug_in_value_less_chance() -> None:
    codes = dependent(300, 4, 3)
    bits = pair_bits(pair_counts(codes, (3,) * 4), (3,) * 4)
    for a in range(4):
        for b in range(4):
            expected = (
                0 if a == b else mutual_information(codes[:, a].tolist(), codes[:, b].tolist())
            )
            assert bits[a, b] == pytest.approx(expected, abs=1e-9)


def test_the_tree_of_a_chain_is_the_chain() -> None:
    codes = dependent(2000, 6, 4)[:, [3, 0, 5, 1, 4, 2]]
    edges = spanning_tree(pair_bits(pair_counts(codes, (4,) * 6), (4,) * 6))
    places = [3, 0, 5, 1, 4, 2]
    assert {abs(places[a] - places[b]) for a, b in edges} == {1}
    assert [child for _, child in edges] != sorted(child for _, child in edges)
    known = {0}
    for parent, child in edges:
        assert parent in known
        known.add(child)
    assert known == set(range(6))


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        (np.zeros((3, 2), np.uint8), "shape"),
        (np.array([[0, 2, 0]], np.uint8), "variable 1 takes unit 2, but has 2 units"),
        (np.zeros((0, 3), np.uint8), "too few"),
    ],
)
def test_codes_of_other_units_are_one_sentence(codes: np.ndarray, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_codes(codes, UNITS)
