import numpy as np
import pytest

from imsvd.errors import InputError
from imsvd.population import compare_codes
from imsvd.population.homogeneity import Homogeneity, _step_down
from tests.oracles.population import exact_p_value, pearson
from tests.population.made_up import dependent, independent


def test_statistics_are_pearsons() -> None:
    units = (3, 2, 5)
    first, second = independent(40, units), independent(25, units, seed=1)
    first[:, 2] %= 4
    second[:, 2] %= 4
    found = compare_codes(first, second, units, permutations=9)
    for variable in range(3):
        expected = pearson(first[:, variable].tolist(), second[:, variable].tolist())
        assert found.statistics[variable] == pytest.approx(expected)
    assert found.counts[:, 9].tolist() == [0, 0]
    assert np.isfinite(found.unit_scores).all()


@pytest.mark.parametrize("sizes", [(4, 6), (6, 4)])
def test_the_overall_p_value_is_that_of_all_arrangements(sizes: tuple[int, int]) -> None:
    units = (2, 3)
    first, second = independent(sizes[0], units, 5), independent(sizes[1], units, 6)
    first[:, 0] = 0
    found = compare_codes(first, second, units, permutations=4000)
    expected = exact_p_value(list(map(tuple, first.tolist())), list(map(tuple, second.tolist())))
    assert found.p_value == pytest.approx(expected, abs=0.03)


def alarms(runs: int, permutations: int) -> list[Homogeneity]:
    units = (4,) * 8
    return [
        compare_codes(
            dependent(60, 8, 4, 2 * run),
            dependent(90, 8, 4, 2 * run + 1),
            units,
            seed=run,
            permutations=permutations,
        )
        for run in range(runs)
    ]


def test_dependent_variables_do_not_raise_false_alarms() -> None:
    # 200 tests at 10 %: 20 ± 4.2 alarms; a test that took variables as independent gives 35 or more.
    found = alarms(200, 99)
    assert 9 <= sum(result.p_value <= 0.1 for result in found) <= 31
    assert 9 <= sum(result.largest_p_value <= 0.1 for result in found) <= 31
    assert sum(result.variable_p_values.min() <= 0.1 for result in found) <= 31
    assert sum(result.unit_p_values.min() <= 0.1 for result in found) <= 31


def test_blocks_of_images_keep_level_and_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imsvd.population.homogeneity.MOST_BLOCKS", 25)
    found = alarms(200, 99)
    assert 9 <= sum(result.p_value <= 0.1 for result in found) <= 31
    units = (4,) * 8
    first, second = dependent(301, 8, 4, 0), dependent(407, 8, 4, 1)
    second[:120, 2] = 1
    assert compare_codes(first, second, units, permutations=199).p_value <= 0.01
    assert compare_codes(second, first, units, permutations=199).p_value <= 0.01


def test_the_variable_and_the_unit_that_moved_are_named() -> None:
    units = (4,) * 6
    first, second = independent(400, units), independent(300, units, 1)
    second[:80, 3] = 2
    found = compare_codes(first, second, units)
    assert found.variable_p_values[3] <= 0.01
    assert (np.delete(found.variable_p_values, 3) > 0.05).all()
    gained = 3 * 4 + 2
    assert found.unit_scores.argmax() == gained
    assert found.unit_p_values[gained] <= 0.01
    np.testing.assert_allclose(found.shares().sum(axis=1), 6)


def test_step_down_is_never_above_the_single_step_and_monotone() -> None:
    values = np.random.default_rng(0).normal(size=(200, 5))
    values[0] = [4.0, 0.5, 2.5, -1.0, 1.0]
    adjusted = _step_down(values)
    single = [(values.max(axis=1) >= value).mean() for value in values[0]]
    assert (adjusted <= single).all()
    assert adjusted[0] < adjusted[2] < adjusted[4] <= adjusted[1] <= adjusted[3]
    assert adjusted[3] == pytest.approx((values[:, 3] >= -1.0).mean(), abs=0.2)
    assert adjusted[2] == (values[:, 1:].max(axis=1) >= 2.5).mean()


def test_constant_variables_and_equal_sets_show_nothing() -> None:
    codes = np.zeros((10, 3), np.uint8)
    found = compare_codes(codes, codes[:7], (2, 1, 3), permutations=19)
    assert found.p_value == 1
    assert (found.variable_p_values == 1).all()
    assert (found.unit_p_values == 1).all()


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = independent(30, (4, 4)), independent(30, (4, 4), 1)
    results = [compare_codes(first, second, (4, 4), seed=seed).p_value for seed in (0, 0, 1)]
    assert results[0] == results[1] != results[2]


def test_no_permutations_are_refused() -> None:
    codes = independent(5, (2,))
    with pytest.raises(InputError, match="permutations = 0"):
        compare_codes(codes, codes, (2,), permutations=0)
