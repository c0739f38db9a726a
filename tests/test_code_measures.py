from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from imsvd import code_measures
from imsvd.code_measures import (
    Monosemanticity,
    contingency,
    cosine_recall,
    expected_hits,
    matched_units,
    monosemanticity,
    unit_purity,
)
from imsvd.errors import InputError
from tests.oracles import code_measures as oracle

UNITS = (2, 3, 4)


@pytest.fixture(autouse=True, params=[5, 1024])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measure must be the same in several blocks and in one."""
    monkeypatch.setattr(code_measures, "BLOCK", request.param)
    monkeypatch.setattr(code_measures, "_QUERIES", min(3, request.param))


def drawn_codes(count: int, seed: int = 0, units: tuple[int, ...] = UNITS) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, units, (count, len(units)))


def drawn_features(count: int, seed: int = 1) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0.3, 1, (count, 6))


def as_active(codes: NDArray[np.int64], units: tuple[int, ...] = UNITS) -> NDArray[np.bool_]:
    columns = [codes[:, m] == d for m, size in enumerate(units) for d in range(size)]
    return np.stack(columns, 1)


def test_contingency_counts_the_images_of_two_units() -> None:
    first, second = drawn_codes(17), drawn_codes(17, 1, (3, 2))
    sets = oracle.image_sets(first, UNITS), oracle.image_sets(second, (3, 2))
    expected = [[len(ours & theirs) for theirs in sets[1]] for ours in sets[0]]
    np.testing.assert_array_equal(contingency(first, second, UNITS, (3, 2)), expected)


class TestPurity:
    def test_matches_the_definition(self) -> None:
        codes, labels = drawn_codes(40), np.random.default_rng(2).integers(0, 3, 40)
        found = unit_purity(codes, labels, UNITS)
        sets = oracle.image_sets(codes, UNITS)
        expected = [oracle.purity(images, labels.tolist()) for images in sets]
        np.testing.assert_allclose(found.per_unit, expected)
        sizes = [len(images) for images in sets]
        assert found.sizes.tolist() == sizes
        assert found.mean == pytest.approx(np.average(expected, weights=sizes))

    def test_chance_is_the_mean_over_all_sets_of_the_same_size(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(code_measures, "DRAWS", 20_000)
        labels = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
        codes = np.array([[0], [0], [1], [1], [1], [1], [1], [1], [1]])
        found = unit_purity(codes, labels, (2,))
        expected = [oracle.random_purity(size, labels.tolist()) for size in (2, 7)]
        np.testing.assert_allclose(found.by_chance, expected, atol=0.005)
        by_hand = (2 * expected[0] + 7 * expected[1]) / 9
        assert found.mean_by_chance == pytest.approx(by_hand, abs=0.005)

    def test_unknown_labels_are_left_out_and_labels_may_be_any_numbers(self) -> None:
        codes, labels = np.array([[0], [0], [0], [1]]), np.array([7, 7, -1, 900])
        found = unit_purity(codes, labels, (3,))
        np.testing.assert_array_equal(found.per_unit, [1, 1, np.nan])
        assert found.sizes.tolist() == [2, 1, 0]
        assert np.isnan(found.by_chance[2])
        assert found.mean == 1

    def test_images_without_any_label_are_refused(self) -> None:
        with pytest.raises(InputError, match="no image has a label"):
            unit_purity(np.array([[0]]), np.array([-1]), (2,))


class TestMonosemanticity:
    def test_is_the_mean_cosine_of_all_pairs(self) -> None:
        codes, features = drawn_codes(23), drawn_features(23)
        found = monosemanticity(codes, features, UNITS)
        expected = [oracle.similarity(each, features) for each in oracle.image_sets(codes, UNITS)]
        np.testing.assert_allclose(found.per_unit, expected, atol=1e-6)
        chance = oracle.similarity(set(range(23)), features)
        np.testing.assert_allclose(found.by_chance, chance, atol=1e-6)

    def test_batches_give_the_value_of_one_pass(self) -> None:
        codes, features = drawn_codes(23), drawn_features(23)
        streamed = Monosemanticity(sum(UNITS), 6)
        for rows in (slice(0, 4), slice(4, 5), slice(5, 23)):
            streamed.add(codes[rows], torch.from_numpy(features[rows]), UNITS)
        whole = monosemanticity(codes, features, UNITS)
        np.testing.assert_allclose(streamed.scores().per_unit, whole.per_unit, atol=1e-12)

    def test_units_below_two_images_have_none(self) -> None:
        found = monosemanticity(np.array([[0], [1], [1]]), np.eye(3), (3,))
        np.testing.assert_allclose(found.per_unit, [np.nan, 0, np.nan], atol=1e-12)
        assert found.mean == 0

    def test_features_of_zero_are_similar_to_nothing(self) -> None:
        features = np.array([[0.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
        found = monosemanticity(np.zeros((3, 1), dtype=int), features, (2,))
        # One pair of three is equal; pairs with the zero vector count as 0.
        assert found.per_unit[0] == pytest.approx(1 / 3)


class TestMatching:
    def test_is_the_best_of_all_assignments(self) -> None:
        first, second = drawn_codes(20, 3), drawn_codes(20, 4, (3, 3))
        second[:8, 0] = first[:8, 1]
        found = matched_units(first, second, UNITS, (3, 3))
        sets = oracle.image_sets(second, (3, 3)), oracle.image_sets(first, UNITS)
        expected = oracle.best_matching(*sets)
        assert found.jaccard.sum() == pytest.approx(sum(expected))
        assert found.num_units == 9
        assert found.mean_jaccard == pytest.approx(sum(expected) / 9)
        for ours, theirs, overlap in zip(found.first, found.second, found.jaccard, strict=True):
            a, b = sets[1][ours], sets[0][theirs]
            assert overlap == pytest.approx(len(a & b) / len(a | b))

    def test_renamed_units_match_fully(self) -> None:
        codes = drawn_codes(60)
        renamed = np.stack([(codes[:, 2] + 1) % 4, codes[:, 0], 2 - codes[:, 1]], 1)
        found = matched_units(codes, renamed, UNITS, (4, 2, 3))
        assert found.share == 1
        assert found.mean_jaccard == 1

    def test_half_of_the_images_in_common_is_a_match_and_less_is_not(self) -> None:
        first = np.array([[0], [0], [1], [1], [1], [1]])
        second = np.array([[0], [1], [1], [1], [2], [2]])
        found = matched_units(first, second, (3,), (3,))
        # {0, 1} and {0}: 1/2; {2, 3, 4, 5} and {4, 5}: 2/4, or {1, 2, 3}: 2/5. The third unit has no partner.
        assert sorted(found.jaccard.tolist()) == [0.5, 0.5]
        assert found.num_units == 3
        assert found.share == pytest.approx(2 / 3)
        assert found.mean_jaccard == pytest.approx(1 / 3)

    def test_dead_units_do_not_count(self) -> None:
        codes = np.array([[0], [0], [3]])
        assert matched_units(codes, codes, (9,), (9,)).share == 1


class TestCosineRecall:
    def test_is_the_mean_over_all_orders_of_tied_images(self) -> None:
        units = (2, 2)
        codes, features = drawn_codes(7, 5, units), drawn_features(7)
        others = [[j for j in range(7) if j != i] for i in range(7)]
        shared = [[int((codes[i] == codes[j]).sum()) for j in others[i]] for i in range(7)]
        cosines = [[oracle.cosine(features[i], features[j]) for j in others[i]] for i in range(7)]
        expected = oracle.recall_in_every_order(shared, cosines, 3)
        assert cosine_recall(codes, features, units, neighbors=3) == pytest.approx(expected)

    def test_searches_another_bank(self) -> None:
        units = (2, 2)
        codes, features = drawn_codes(4, 6, units), drawn_features(4)
        bank, bank_features = drawn_codes(6, 7, units), drawn_features(6, 8)
        shared = [[int((a == b).sum()) for b in bank] for a in codes]
        cosines = [[oracle.cosine(a, b) for b in bank_features] for a in features]
        expected = oracle.recall_in_every_order(shared, cosines, 2)
        found = cosine_recall(codes, features, units, bank=(bank, bank_features), neighbors=2)
        assert found == pytest.approx(expected)

    def test_equal_codes_have_the_recall_of_chance(self) -> None:
        codes, features = np.zeros((31, 1), dtype=int), drawn_features(31)
        assert cosine_recall(codes, features, (2,)) == pytest.approx(10 / 30)

    def test_few_images_are_all_found_and_one_is_refused(self) -> None:
        assert cosine_recall(drawn_codes(4), drawn_features(4), UNITS) == 1
        with pytest.raises(InputError, match="at least one image"):
            cosine_recall(drawn_codes(1), drawn_features(1), UNITS)

    def test_expected_hits_share_the_last_places(self) -> None:
        similarity = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0]])
        # Two places: image 0 has one, images 1 to 3 share the other.
        assert expected_hits(similarity, torch.tensor([[0, 1]])).item() == pytest.approx(4 / 3)
        assert expected_hits(similarity, torch.tensor([[1, 4]])).item() == pytest.approx(1 / 3)


def test_pair_information_is_that_of_the_joint_histogram() -> None:
    random = np.random.default_rng(0)
    first = np.stack([random.integers(0, size, 300) for size in UNITS], 1)
    second = np.where(random.random(first.shape) < 0.5, first, 0)
    counts = torch.from_numpy(contingency(first, second, UNITS, UNITS))
    found = code_measures.pair_information(counts, UNITS)
    for a in range(3):
        for b in range(3):
            expected = oracle.pair_information(first[:, a], second[:, b])
            assert float(found[a, b]) == pytest.approx(expected, abs=1e-12)


def test_sets_of_active_units_give_the_values_of_codes() -> None:
    codes, features, labels = drawn_codes(30), drawn_features(30), drawn_codes(30, 9)[:, 1]
    active = as_active(codes)
    other = drawn_codes(30, 10)
    for ours, theirs in (
        (unit_purity(codes, labels, UNITS), unit_purity(active, labels)),
        (monosemanticity(codes, features, UNITS), monosemanticity(active, features)),
    ):
        np.testing.assert_array_equal(ours.per_unit, theirs.per_unit)
        np.testing.assert_array_equal(ours.by_chance, theirs.by_chance)
    assert (
        matched_units(codes, other, UNITS, UNITS).share
        == matched_units(active, as_active(other)).share
    )
    assert cosine_recall(codes, features, UNITS) == cosine_recall(active, features)


def test_sets_may_have_any_number_of_active_units() -> None:
    active = np.random.default_rng(0).random((19, 5)) < 0.4
    features = drawn_features(19)
    expected = [oracle.similarity(images, features) for images in oracle.active_sets(active)]
    np.testing.assert_allclose(monosemanticity(active, features).per_unit, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("codes", "units", "message"),
    [
        (np.zeros((2, 3), dtype=int), None, "one number for each of 3 variables"),
        (np.zeros((2, 3), dtype=int), (2, 2), "one number for each of 3 variables"),
        (np.full((2, 1), 2), (2,), "beyond units"),
        (np.full((2, 1), -1), (2,), "below 0"),
        (np.zeros((2, 3), dtype=bool), (3,), "leave out units"),
        (np.zeros((3, 1), dtype=int), (2,), "same images"),
    ],
)
def test_codes_that_do_not_fit_are_refused(codes: Any, units: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        unit_purity(codes, np.zeros(2, dtype=int), units)
