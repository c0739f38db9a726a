import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd import information
from imsvd.errors import InputError
from tests.oracles import information as oracle

sizes_of_variables = st.lists(st.integers(2, 4), min_size=1, max_size=4)


def probabilities(sizes: list[int], batch: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, sum(sizes), generator=generator, dtype=torch.float64)
    return information.soft_discretize(logits, sizes)


def one_hot(codes: list[list[int]], units: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(codes), units).flatten(1).double()


class TestResolveUnits:
    def test_one_number_is_repeated(self) -> None:
        assert information.resolve_units(12, 4) == (4, 4, 4)

    def test_a_sequence_is_kept(self) -> None:
        assert information.resolve_units(9, [2, 3, 4]) == (2, 3, 4)

    @pytest.mark.parametrize(
        ("width", "units", "message"),
        [
            (1000, 80, "Width 1000 is not divisible by units 80: set the width to 960 or 1040"),
            (7, 8, "Width 7 is not divisible by units 8: set the width to 8,"),
            (10, [2, 3], "Width 10 does not match units that sum to 5: set the width to 5"),
            (10, 1, "at least 2 units"),
            (10, [9, 1], "at least 2 units"),
            (10, [], "at least 2 units"),
        ],
    )
    def test_bad_units_name_the_remedy(
        self, width: int, units: information.Units, message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            information.resolve_units(width, units)


@given(sizes_of_variables)
@settings(max_examples=20, deadline=None)
def test_soft_discretize_equals_equation_1(sizes: list[int]) -> None:
    logits = torch.randn(3, sum(sizes), dtype=torch.float64)
    expected = oracle.soft_discretize(logits, sizes)
    torch.testing.assert_close(information.soft_discretize(logits, sizes), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_soft_discretize_widens_half_precision_even_under_autocast(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 8).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = information.soft_discretize(logits, 4)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q, information.soft_discretize(logits.float(), 4))


@given(sizes_of_variables, st.data())
@settings(max_examples=30, deadline=None)
def test_entropies_and_total_correlation_equal_equations_3_to_8(
    sizes: list[int], data: st.DataObject
) -> None:
    q = probabilities(sizes)
    order = data.draw(st.integers(1, len(sizes)))
    expected = oracle.mean_entropy(q, sizes, order)
    assert float(information.mean_entropy(q, sizes, order)) == pytest.approx(expected, rel=1e-12)
    correlation = order * oracle.mean_entropy(q, sizes, 1) - expected
    actual = float(information.total_correlation(q, sizes, order))
    assert actual == pytest.approx(correlation, rel=1e-10, abs=1e-12)


def test_joint_has_one_dimension_per_variable_in_the_order_given() -> None:
    q = probabilities([2, 3, 4])
    first, _, third = torch.split(q, [2, 3, 4], 1)
    expected = torch.einsum("na,nb->ab", third, first) / len(q)
    torch.testing.assert_close(information.joint(q, [2, 0], [2, 3, 4]), expected)
    three = information.joint(q, [0, 1, 2], [2, 3, 4])
    assert three.shape == (2, 3, 4)
    torch.testing.assert_close(three.sum(1), expected.T)
    torch.testing.assert_close(information.joint(q, [1], [2, 3, 4]), q[:, 2:5].mean(0))


@pytest.mark.parametrize("variables", [[], [3], [-1]])
def test_joint_of_unknown_variables_is_refused(variables: list[int]) -> None:
    with pytest.raises(InputError):
        information.joint(probabilities([2, 2, 2]), variables, 2)


def test_cross_joint_blocks_are_distributions() -> None:
    cells = information.cross_joint(probabilities([2, 3]), probabilities([2, 3], seed=1))
    assert float(cells[:2, 2:].sum()) == pytest.approx(1)


def test_entropy_of_zeros_is_finite_with_a_finite_gradient() -> None:
    p = torch.tensor([0.0, 1.0, 0.0], requires_grad=True)
    value = information.entropy(p)
    value.backward()  # type: ignore[no-untyped-call]
    assert float(value.detach()) == 0
    assert p.grad is not None
    assert p.grad.isfinite().all()


@given(st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_sampled_subsets_are_distinct_and_repeatable(count: int, seed: int) -> None:
    q = probabilities([2] * 5)
    values = [
        information.mean_entropy(q, 2, 2, count, torch.Generator().manual_seed(seed))
        for _ in range(2)
    ]
    assert values[0] == values[1]
    subsets = information._subsets(5, 2, count, torch.Generator().manual_seed(seed))
    assert len(set(subsets)) == count


def test_impossible_orders_and_counts_are_refused() -> None:
    q = probabilities([2, 2, 2])
    for order in (0, 4):
        with pytest.raises(InputError, match="choose 1 to 3"):
            information.mean_entropy(q, 2, order)
    with pytest.raises(InputError, match="at least 1"):
        information.mean_entropy(q, 2, 2, max_subsets=0)


@pytest.mark.parametrize("sizes", [[3, 3, 3], [2, 4, 3]])
def test_pairwise_mutual_information_equals_its_definition(sizes: list[int]) -> None:
    q = probabilities(sizes, batch=7)
    actual = information.pairwise_mutual_information(q, sizes)
    for m1 in range(3):
        for m2 in range(3):
            expected = oracle.mutual_information(q, m1, m2, sizes)
            if m1 == m2:
                expected = oracle.joint_entropy(q, [m1], sizes)
            assert float(actual[m1, m2]) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_copied_variables_share_their_whole_entropy() -> None:
    q = one_hot([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]], 2)
    actual = information.pairwise_mutual_information(q, 2)
    log2 = math.log(2)
    expected = torch.tensor([[log2, log2, 0], [log2, log2, 0], [0, 0, log2]]).double()
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)


def test_codes_maxima_one_hotness_and_dead_units() -> None:
    q = torch.tensor([[0.95, 0.05, 0.2, 0.7, 0.1], [0.4, 0.6, 0.001, 0.005, 0.994]])
    units = [2, 3]
    assert information.codes(q, units).tolist() == [[0, 1], [1, 2]]
    assert information.codes(q, units).dtype == torch.int64
    expected = torch.tensor([[0.95, 0.7], [0.6, 0.994]])
    torch.testing.assert_close(information.max_probabilities(q, units), expected)
    assert float(information.one_hotness(q, units, 0.9)) == 0.5
    assert float(information.one_hotness(q, units, 0.99)) == 0.25
    p = torch.tensor([0.996, 0.004, 0.5, 0.496, 0.004])
    assert int(information.dead_units(p, units)) == 1
    assert int(information.dead_units(p, units, fraction=0.02)) == 2


def test_effective_rank_counts_equal_directions() -> None:
    assert float(information.effective_rank(torch.eye(6)[:4])) == pytest.approx(4, rel=1e-5)
    assert float(information.effective_rank(torch.ones(5, 3))) == pytest.approx(1, rel=1e-3)
    assert float(information.effective_rank(torch.zeros(5, 3))) == 1


@settings(max_examples=30, deadline=None)
@given(sizes_of_variables, st.integers(0, 5))
def test_certainty_is_the_surprise_of_all_other_units(sizes: list[int], seed: int) -> None:
    q = probabilities(sizes, seed=seed)
    torch.testing.assert_close(information.certainty(q, sizes), -torch.log1p(-q))


def test_certainty_orders_probabilities_that_round_to_one() -> None:
    logits = torch.tensor([[50.0, 0.0, 0.0], [90.0, 0.0, 0.0], [700.0, 0.0, 0.0]]).double()
    q = information.soft_discretize(logits, 3)
    assert (q.float()[:, 0] == 1).all()
    found = information.certainty(q, 3)[:, 0]
    torch.testing.assert_close(found, logits[:, 0] - math.log(2))
