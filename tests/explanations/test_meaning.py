import numpy as np
import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from imsvd.datasets import ShapesSource
from imsvd.encoder import Encoder, EncoderDescription
from imsvd.explanations.meaning import (
    BINS,
    Attribute,
    Leaf,
    Question,
    code_tree,
    explainability,
    feature_bins,
    grow,
    known_attributes,
    meaning,
    normalized_information,
    predict,
    shuffled_baseline,
    variable_codes,
)
from imsvd.networks import BackboneSettings
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


def random_codes(count: int = 600) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4, (count, 5)).astype(np.uint8)


def test_a_rule_of_two_units_is_found_and_read() -> None:
    codes = random_codes()
    values = ((codes[:, 3] == 2) & (codes[:, 1] == 0)).astype(np.int64)
    tree = code_tree(codes, values, [0, 1, 2, 3, 4], ("other", "both"))
    assert tree.accuracy == 1
    assert 0.9 < tree.majority_accuracy < 0.97
    assert "variable 3 takes unit 2?" in tree.text
    assert "variable 1 takes unit 0?" in tree.text
    assert "both (100% of" in tree.text


def test_the_first_question_has_the_lowest_gini_impurity() -> None:
    codes = random_codes(200)
    values = np.random.default_rng(1).integers(0, 3, 200)
    values[codes[:, 2] == 1] = 0
    root = grow(codes, values, range(5), 3, 1)
    assert isinstance(root, Question)

    def impurity(part: np.ndarray) -> float:
        shares = np.bincount(part, minlength=3) / len(part)
        return len(part) * (1 - float((shares**2).sum()))

    splits = {
        (m, d): impurity(values[codes[:, m] == d]) + impurity(values[codes[:, m] != d])
        for m in range(5)
        for d in range(4)
    }
    assert (root.variable, root.unit) == min(splits, key=lambda key: splits[key])


def test_only_the_given_variables_are_asked_about() -> None:
    codes = random_codes()
    tree = code_tree(codes, codes[:, 3].astype(np.int64), [0, 1], ())
    assert "variable 3" not in tree.text


def test_pure_or_few_images_end_in_a_leaf() -> None:
    codes = random_codes(100)
    assert grow(codes, np.zeros(100, dtype=np.int64), range(5), 2, 3) == Leaf(0, 1.0, 100)
    assert isinstance(grow(codes[:12], codes[:12, 0].astype(np.int64), range(5), 4, 3), Leaf)


def test_every_image_gets_the_answer_of_its_branch() -> None:
    leaf = [Leaf(value, 1.0, 1) for value in range(3)]
    node = Question(0, 1, leaf[0], Question(1, 2, leaf[1], leaf[2]))
    codes = np.array([[1, 2], [0, 2], [0, 0]], dtype=np.uint8)
    assert predict(node, codes).tolist() == [0, 1, 2]


OPTIONS = {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}


def encoder(units: tuple[int, ...]) -> Encoder:
    torch.manual_seed(0)
    return Encoder(
        EncoderDescription(
            method="imsvd" if units else "vicreg",
            backbone=BackboneSettings(name="resnet18", options=OPTIONS),
            projector=(16, sum(units)) if units else (),
            units=units,
            size=16,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
        )
    ).eval()


def features(images: int) -> Tensor:
    return torch.randn(images, 8, generator=torch.Generator().manual_seed(1))


def test_bins_hold_as_many_images_each_in_order() -> None:
    found = feature_bins(features(400))
    counts = [np.bincount(column, minlength=BINS).tolist() for column in found.T]
    assert counts == [[50] * BINS] * 8
    order = features(400)[:, 3].argsort().numpy()
    assert (np.diff(found[order, 3].astype(int)) >= 0).all()


def test_equal_values_share_a_bin() -> None:
    assert len(np.unique(feature_bins(torch.zeros(20, 1)))) == 1


def test_a_feature_that_determines_an_attribute_recovers_it_and_chance_does_not() -> None:
    shown = features(600)
    attributes = {
        "side": (shown[:, 2] > shown[:, 2].median()).long(),
        "luck": torch.randint(0, 4, (600,), generator=torch.Generator().manual_seed(2)),
        "constant": torch.zeros(600, dtype=torch.long),
    }
    score = explainability(encoder(()), shown, attributes)
    assert score["attributes_recovered"] == 1
    # side has 1 bit, the feature's bin 3 bits, and they share 1: 2 · 1 / (1 + 3)
    known = 0.5
    luck = 2 * score["mean_best_nmi"] - known
    assert 0 < luck < 0.03


def test_unknown_values_take_no_part_in_the_score() -> None:
    shown = features(600)
    side = (shown[:, 2] > 0).long()
    assert explainability(encoder(()), shown, {"side": side.where(shown[:, 2] > 0, -1)}) == {}


def test_variables_are_scored_if_there_are_any() -> None:
    network, shown = encoder((4, 4, 3)), features(300)
    with torch.no_grad():
        logits = network.projector(shown)
    expected = [part.argmax(1) for part in logits.split([4, 4, 3], dim=1)]
    assert variable_codes(network, shown).tolist() == torch.stack(expected, 1).tolist()
    score = explainability(network, shown, {"unit": expected[1]})
    assert score == {"attributes_recovered": 1.0, "mean_best_nmi": 1.0}


def test_no_attributes_give_no_score() -> None:
    assert explainability(encoder(()), features(20), {}) == {}
