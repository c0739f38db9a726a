import numpy as np
import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from imsvd.datasets import ShapesSource
from imsvd.explanations.meaning import (
    Attribute,
    known_attributes,
    meaning,
    normalized_information,
    shuffled_baseline,
)
from tests.explanations.made_up import encodings


def test_information_equals_scikit_learns() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 6, (300, 4)).astype(np.uint8)
    values = np.where(random.random(300) < 0.5, codes[:, 1] % 3, random.integers(0, 3, 300)) * 7
    found = normalized_information(codes, values.astype(np.int64))
    expected = [normalized_mutual_info_score(column, values) for column in codes.T]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_constant_variable_tells_nothing() -> None:
    codes = np.zeros((10, 1), dtype=np.uint8)
    assert normalized_information(codes, np.arange(10) % 2).tolist() == [0.0]
    assert normalized_information(codes, np.zeros(10, dtype=np.int64)).tolist() == [0.0]


def test_what_was_put_in_is_recovered_and_luck_is_not() -> None:
    random = np.random.default_rng(1)
    codes = random.integers(0, 8, (400, 12)).astype(np.uint8)
    attributes = {
        "color": Attribute(codes[:, 5].astype(np.int64) // 2, ("a", "b", "c", "d")),
        "luck": Attribute(random.integers(0, 9, 400), ()),
    }
    record = meaning(encodings(codes), attributes)
    assert record["recovered"] == ["color"]
    assert (record["attributes_known"], record["attributes_recovered"]) == (2, 1)
    color, luck = record["attributes"]["color"], record["attributes"]["luck"]
    assert color["most_specialized"][0]["variable"] == 5
    # Unrelated values reach some NMI too: the baseline says how much.
    assert max(luck["nmi"]) > 0.04
    assert max(luck["nmi"]) == pytest.approx(luck["baseline"], rel=0.3)
    assert luck["tree"]["accuracy"] < 0.25
    assert "variable 5 takes unit" in color["tree"]["text"]


def test_the_baseline_shrinks_with_more_images() -> None:
    random = np.random.default_rng(2)
    few, many = (random.integers(0, 8, (count, 4)).astype(np.uint8) for count in (100, 3000))
    baselines = [
        shuffled_baseline(codes, random.integers(0, 5, len(codes))) for codes in (few, many)
    ]
    assert baselines[1] < baselines[0] / 10


def test_labels_that_repeat_an_attribute_are_listed_once() -> None:
    source = ShapesSource("train", count=50)
    known = known_attributes(source, np.arange(0, 50, 2))
    assert len(known) == 8
    assert "label" not in known
    np.testing.assert_array_equal(known["color"].values, source.attributes["color"][::2])
    source.labels = torch.arange(50) % 3
    assert "label" in known_attributes(source, np.arange(50))
    source.labels = torch.zeros(50, dtype=torch.int64)
    assert "label" not in known_attributes(source, np.arange(50))


def test_unknown_values_take_no_part() -> None:
    codes = np.tile(np.arange(4, dtype=np.uint8), 50)[:, None]
    values = codes[:, 0].astype(np.int64)
    values[::5] = -1
    record = meaning(encodings(codes), {"label": Attribute(values, ())})
    assert record["attributes"]["label"]["nmi"] == [1.0]


def test_nothing_known_is_no_error() -> None:
    record = meaning(encodings(np.zeros((3, 1), dtype=np.uint8)), {})
    assert record["attributes_known"] == 0
    assert record["mean_best_nmi"] is None
