import sys

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import LinearSVC

from imsvd.errors import InputError
from imsvd.evaluation.svm import (
    SVMSettings,
    classify,
    normalize,
    num_steps,
    require_scikit_learn,
)

SETTINGS = SVMSettings(costs=(0.01, 1, 100), jobs=1)


def samples(
    seed: int = 0,
) -> tuple[NDArray[np.float32], NDArray[np.int8], NDArray[np.float32]]:
    """Training features, targets of three classes with difficult ones among them, test features."""
    random = np.random.default_rng(seed)
    train, test = (random.normal(size=(count, 6)).astype(np.float32) for count in (90, 40))
    noise = random.normal(size=(90, 3))
    targets = np.where(train[:, :3] + noise > 0.5, 1, -1).astype(np.int8)
    targets[random.random(targets.shape) < 0.1] = 0
    return train, targets, test


def plain_machine(cost: float) -> LinearSVC:
    # The dual solver, as in the published protocol: at large costs it stops before the primal optimum.
    return LinearSVC(
        C=cost, dual=True, class_weight={1: 2, -1: 1}, max_iter=2000, tol=1e-4, random_state=0
    )


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths


def validated(features: NDArray[np.float32], labels: NDArray[np.int8], cost: float) -> float:
    scores = []
    for train, held_out in StratifiedKFold(3).split(features, labels):
        machine = plain_machine(cost).fit(features[train], labels[train])
        found = machine.decision_function(features[held_out])
        scores.append(average_precision_score(labels[held_out], found))
    return float(np.mean(scores))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_equals_a_direct_scikit_learn_pipeline() -> None:
    train, targets, test = samples()
    found = classify(train, targets, test, SETTINGS)
    assert len({result.cost for result in found}) > 1
    for number, result in enumerate(found):
        counted = targets[:, number] != 0
        features, labels = unit(train[counted]), targets[counted, number]
        by_cost = {cost: validated(features, labels, cost) for cost in SETTINGS.costs}
        assert result.cost == max(by_cost, key=lambda cost: by_cost[cost])
        assert result.validation == pytest.approx(by_cost[result.cost], abs=1e-10)
        machine = plain_machine(result.cost).fit(features, labels)
        np.testing.assert_allclose(
            result.scores, machine.decision_function(unit(test)), rtol=0, atol=1e-6
        )


def test_difficult_images_change_nothing() -> None:
    train, targets, test = samples()
    before = classify(train, targets, test, SETTINGS)
    train = train.copy()
    train[targets[:, 0] == 0] += 100
    after = classify(train, targets, test, SETTINGS)
    np.testing.assert_array_equal(before[0].scores, after[0].scores)
    assert (before[1].scores != after[1].scores).any()


def test_processes_give_the_same_and_every_step_is_announced() -> None:
    train, targets, test = samples()
    steps: list[None] = []
    few = SETTINGS.model_copy(update={"costs": (0.1, 1.0)})
    alone = classify(train, targets, test, few, lambda: steps.append(None))
    assert len(steps) == num_steps(3, few) == 9
    together = classify(train, targets, test, few.model_copy(update={"jobs": 2}))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)
        assert one.cost == other.cost


def test_what_does_not_converge_is_told() -> None:
    train, targets, test = samples()
    hurried = SVMSettings(costs=(1000,), max_iterations=1, jobs=1)
    assert not any(result.converged for result in classify(train, targets, test, hurried))
    gentle = SVMSettings(costs=(0.01,), jobs=1)
    assert all(result.converged for result in classify(train, targets, test, gentle))


def test_rows_have_length_one_and_zero_rows_stay() -> None:
    found = normalize(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(found, np.array([[0.6, 0.8], [0.0, 0.0]]), atol=1e-7)


def test_the_paper_s_costs_are_the_default() -> None:
    assert SVMSettings().costs == (0.01, 0.1, 1, 2, 5, 10, 15, 20, 50, 100, 1000)
    assert (SVMSettings().folds, SVMSettings().positive_weight) == (3, 2)


def test_without_scikit_learn_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r"pip install 'imsvd\[evaluation\]'"):
        require_scikit_learn()
