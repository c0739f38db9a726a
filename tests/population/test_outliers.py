from math import log2

import numpy as np
import pytest

from imsvd.population import find_outliers
from tests.population.made_up import dependent, independent


def test_scores_are_bits_under_the_tree_without_the_largest_surprise() -> None:
    codes = independent(40, (3, 2), 3)
    found = find_outliers(codes, (3, 2))
    n = len(codes)
    root = [(np.sum(codes[:, 0] == u) + 0.5) / (n + 1.5) for u in range(3)]
    single = [(np.sum(codes[:, 1] == u) + 0.5) / (n + 1) for u in range(2)]

    def conditional(code: np.ndarray) -> float:
        above = codes[codes[:, 0] == code[0]]
        return float((np.sum(above[:, 1] == code[1]) + 2 * single[code[1]]) / (len(above) + 2))

    bits = np.array([[-log2(root[code[0]]), -log2(conditional(code))] for code in codes])
    surprise = bits - bits.mean(axis=0)
    np.testing.assert_allclose(found.scores, surprise.sum(1) - surprise.max(1), atol=1e-5)
    assert [image.image for image in found.images] == np.argsort(
        -found.scores, kind="stable"
    ).tolist()


def test_broken_dependence_is_rare_although_every_unit_is_common() -> None:
    codes = dependent(2000, 8, 4)
    codes[:, 1:4] = codes[:, :1]
    codes[7] = [0, 1, 2, 3, 0, 1, 2, 3]
    first = find_outliers(codes, (4,) * 8, 3).images[0]
    assert first.image == 7
    assert first.deviations > 5
    reason = first.reasons[0]
    assert reason.parent is not None
    assert {reason.variable, reason.parent[0]} <= {0, 1, 2, 3}
    assert codes[7, reason.variable] == reason.unit
    assert codes[7, reason.parent[0]] == reason.parent[1]
    assert reason.share < 0.01
    assert reason.bits > 5


def test_one_rare_unit_does_not_make_an_outlier() -> None:
    codes = independent(3000, (4,) * 10, 1)
    codes[:, 5] %= 3
    codes[11, 5] = 3  # the only image with this unit
    found = find_outliers(codes, (4,) * 10, 300)
    assert 11 not in {image.image for image in found.images}


def test_many_images_give_the_scores_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = dependent(900, 5, 4)
    whole = find_outliers(codes, (4,) * 5).scores
    monkeypatch.setattr("imsvd.population.outliers.IMAGES_FOR_TREE", 400)
    np.testing.assert_allclose(find_outliers(codes, (4,) * 5).scores, whole, atol=1e-5)


def test_a_single_variable_and_equal_codes_have_no_outliers() -> None:
    found = find_outliers(np.zeros((5, 2), np.uint8), (2, 2))
    assert {image.deviations for image in found.images} == {0}
    assert not find_outliers(independent(9, (3,)), (3,)).scores.any()
