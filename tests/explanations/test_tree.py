import numpy as np

from imsvd.explanations.tree import Leaf, Question, code_tree, grow, predict


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
