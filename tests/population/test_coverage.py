import numpy as np
import pytest

from imsvd.errors import InputError
from imsvd.population import measure_coverage
from imsvd.population.counting import pair_counts
from imsvd.population.coverage import _adjusted, _pair_p_values, _single
from tests.oracles.population import binomial_tails, hypergeometric_tails, yekutieli
from tests.population.made_up import independent


def factorials(n: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])


@pytest.mark.parametrize(("a", "b", "n"), [(12, 20, 60), (5, 5, 30), (40, 35, 60), (90, 60, 270)])
def test_pair_p_values_bound_the_exact_tail_closely(a: int, b: int, n: int) -> None:
    for k in range(max(0, a + b - n), min(a, b) + 1):
        found = _pair_p_values(np.array([k]), np.array([a]), np.array([b]), n, factorials(n))[0]
        exact = 2 * float(min(hypergeometric_tails(k, a, b, n)))
        assert found >= min(1, exact) * (1 - 1e-9)
        if exact < 1e-3:
            assert found <= 1.15 * exact


def test_unit_p_values_bound_the_exact_tail_closely() -> None:
    codes = np.array([[0]] * 9 + [[1]] * 46 + [[2]] * 25, np.uint8)
    found = _single(pair_counts(codes, (4,)), (4,), 80, factorials(80), level=0.999)
    adjusted = yekutieli([2 * float(min(binomial_tails(k, 80, 4))) for k in (9, 46, 25, 0)])
    p_values = {use.unit: use.p_value for use in found}
    for unit in (0, 1, 3):
        assert adjusted[unit] * (1 - 1e-9) <= p_values[unit] <= 1.2 * adjusted[unit]
    assert [use.unit for use in found[:3]] == [1, 3, 0]
    assert (found[0].surplus, found[0].ratio) == (26, 2.3)


def test_adjustment_is_that_of_the_definition() -> None:
    p_values = np.random.default_rng(0).random(40) ** 4
    np.testing.assert_allclose(_adjusted(p_values, 40), yekutieli(p_values.tolist()))


def test_missing_and_crowded_pairs_are_found_in_order() -> None:
    codes = independent(3000, (4,) * 6)
    empty = (codes[:, 1] == 2) & (codes[:, 4] == 0)
    codes[empty, 4] = 3
    found = measure_coverage(codes, (4,) * 6)
    assert found.tested_pairs == 15 * 16
    assert {(pair.variable, pair.unit) for pair in found.pairs[:2]} == {(1, 2)}
    assert {(pair.other_variable, pair.other_unit) for pair in found.pairs[:2]} == {(4, 0), (4, 3)}
    missing = next(pair for pair in found.pairs if pair.other_unit == 0)
    assert missing.images == 0
    assert missing.ratio == 0
    assert missing.surplus == pytest.approx(-missing.expected)
    sizes = [abs(pair.surplus) for pair in found.pairs]
    assert sizes == sorted(sizes, reverse=True)


def test_independent_units_give_findings_in_few_sets() -> None:
    hits = sum(
        bool(measure_coverage(independent(200, (3,) * 8, seed), (3,) * 8).pairs)
        for seed in range(150)
    )
    assert hits <= 12


def test_constant_and_unused_units_are_no_findings() -> None:
    codes = independent(300, (1, 3, 4))
    codes[:, 2] = 1
    found = measure_coverage(codes, (1, 3, 4))
    assert found.tested_pairs == 0
    assert not found.pairs
    assert {use.variable for use in found.units} == {2}


@pytest.mark.parametrize("level", [0, 1])
def test_a_level_outside_of_0_to_1_is_refused(level: float) -> None:
    with pytest.raises(InputError, match="level"):
        measure_coverage(independent(5, (2,)), (2,), level=level)
