import numpy as np
import pytest

from imsvd.explanations.discreteness import (
    code_entropy,
    discreteness,
    entropy_bits,
    pairwise_bits,
    spanning_tree_weight,
)
from tests.explanations.made_up import encodings
from tests.oracles import explanations as oracle


def random_codes(count: int, units: tuple[int, ...], seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.stack([random.integers(0, size, count) for size in units], 1).astype(np.uint8)


def test_entropy_with_its_correction_by_hand() -> None:
    plain = -(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25))
    assert entropy_bits(np.array([3, 0, 1])) == pytest.approx(plain + 1 / (8 * np.log(2)))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_heaviest_tree_equals_trying_every_tree(count: int) -> None:
    for seed in range(5):
        weights = np.random.default_rng(seed).random((count, count))
        weights = weights + weights.T
        expected = oracle.heaviest_tree(weights) if count > 1 else 0.0
        assert spanning_tree_weight(weights) == pytest.approx(expected)


def test_independent_codes_hold_all_their_bits() -> None:
    units = (4, 4, 4, 4)
    entropy = code_entropy(random_codes(20_000, units), units)
    assert entropy.capacity == 8
    assert entropy.upper == pytest.approx(8, abs=0.02)
    # 256 codes in 20,000 images: even the plug-in estimate is nearly right.
    assert entropy.lower == pytest.approx(8, abs=0.02)
    assert entropy.distinct_codes == 256


def test_copies_hold_no_more_than_the_original() -> None:
    original = random_codes(20_000, (8, 4))
    codes = np.concatenate([original, original[:, :1], original[:, 1:]], 1)
    entropy = code_entropy(codes, (8, 4, 8, 4))
    assert entropy.capacity == 10
    assert entropy.marginal_sum == pytest.approx(10, abs=0.01)
    assert entropy.upper == pytest.approx(5, abs=0.02)
    assert entropy.lower == pytest.approx(5, abs=0.02)


def test_few_images_show_few_bits_and_the_bracket_says_so() -> None:
    units = (16,) * 12
    entropy = code_entropy(random_codes(1000, units), units)
    assert entropy.lower == pytest.approx(np.log2(1000), abs=1e-9)
    assert entropy.lower < entropy.upper <= entropy.capacity == 48


def test_pairs_share_what_they_share() -> None:
    codes = random_codes(5000, (4, 4))
    codes = np.concatenate([codes, codes[:, :1]], 1)
    single = [entropy_bits(np.bincount(column)) for column in codes.T]
    shared = pairwise_bits(codes, (4, 4, 4), single)
    assert shared[0, 2] == pytest.approx(2, abs=0.01)
    assert shared[0, 1] < 0.01
    np.testing.assert_array_equal(shared, shared.T)


def test_dead_and_overused_units_are_counted() -> None:
    units = (5, 2)
    made = encodings(random_codes(100, units))._replace(
        marginals=np.array([0.001, 0.1, 0.1, 0.1, 0.699, 0.5, 0.5]),
        above=np.array([150, 50]),
    )
    record = discreteness(made, units)
    assert (record["dead_units"], record["overused_units"]) == (1, 1)
    assert (record["share_above_0.9"], record["share_above_0.99"]) == (0.75, 0.25)


@pytest.mark.parametrize(("count", "size"), [(512, 32), (1000, 80)])
def test_few_images_do_not_push_the_bound_below_the_truth(count: int, size: int) -> None:
    codes = np.random.default_rng(1).integers(size, size=(count, 12))
    entropy = code_entropy(codes, (size,) * 12)
    assert entropy.capacity * 0.97 <= entropy.upper <= entropy.capacity


@pytest.mark.parametrize("dead", [0, 11])
def test_a_variable_that_always_chooses_alike_does_not_spoil_the_bound(dead: int) -> None:
    codes = np.random.default_rng(1).integers(80, size=(1000, 12))
    codes[:, dead] = 3
    entropy = code_entropy(codes, (80,) * 12)
    truth = 11 * np.log2(80)
    assert 0.97 * truth <= entropy.upper <= 1.01 * truth
