import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import LinearSVC

from imsvd.datasets.drawn.drawing import SHAPES
from imsvd.datasets.drawn.scene_files import write_scenes
from imsvd.datasets.voc import open_voc
from imsvd.encoder import load
from imsvd.errors import InputError
from imsvd.evaluation import protocols
from imsvd.evaluation.voc07 import (
    MultiLabelFeatures,
    SVMSettings,
    all_point_average_precision,
    classify,
    eleven_point_average_precision,
    normalize,
    num_steps,
    require_scikit_learn,
    run_voc07,
    voc07,
)
from tests.oracles import average_precision as oracle
from tests.pretraining.tiny import CommandLine

QUICK = SVMSettings(costs=(0.1, 10), max_iterations=50, jobs=1)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes") / "voc"
    return write_scenes(folder, images=60, size=64, layout="voc")


def spoilt(scenes: Path, folder: Path) -> Path:
    """A copy whose lists and images may be changed."""
    return Path(shutil.copytree(scenes, folder / "voc")) / "VOCdevkit" / "VOC2007"


def random_split(count: int, seed: int) -> MultiLabelFeatures:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 5, generator=generator)
    noise = torch.randn(count, 2, generator=generator)
    targets = torch.where(features[:, :2] + noise > 0, 1, -1).to(torch.int8)
    targets[torch.rand(count, 2, generator=generator) < 0.15] = 0
    return MultiLabelFeatures(features, targets)


def test_the_mean_is_over_classes_without_their_difficult_images() -> None:
    train, test = random_split(80, 0), random_split(50, 1)
    metrics, details = voc07(train, test, ("cat", "dog"), QUICK)
    found = classify(train.features.numpy(), train.targets.numpy(), test.features.numpy(), QUICK)
    expected = []
    for number, result in enumerate(found):
        labels = test.targets[:, number].tolist()
        pairs = [(s, y) for s, y in zip(result.scores, labels, strict=True) if y != 0]
        scores, positives = [s for s, _ in pairs], [y == 1 for _, y in pairs]
        expected.append(100 * oracle.eleven_point(scores, positives))
        assert len(pairs) < len(labels)
    assert metrics["voc07/cat"] == pytest.approx(expected[0], abs=1e-9)
    assert metrics["voc07_map"] == pytest.approx(np.mean(expected), abs=1e-9)
    assert set(metrics) == {"voc07_map", "voc07_map_all_points", "voc07/cat", "voc07/dog"}
    assert details["costs"] == {"cat": found[0].cost, "dog": found[1].cost}


def test_separable_classes_are_told_apart_perfectly() -> None:
    train, test = random_split(80, 0), random_split(50, 1)
    train, test = (
        MultiLabelFeatures(torch.eye(2)[(split.targets[:, 0] > 0).long()], split.targets[:, :1])
        for split in (train, test)
    )
    metrics, _ = voc07(train, test, ("cat",), QUICK)
    assert metrics["voc07_map"] == metrics["voc07_map_all_points"] == 100


def test_a_run_is_evaluated_from_the_command_line(
    command: CommandLine,
    trained: Path,
    scenes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    # The paper's grid takes long to converge on features as poor as a tiny run's.
    monkeypatch.setattr(
        protocols, "SVMSettings", lambda jobs: QUICK.model_copy(update={"jobs": jobs})
    )
    assert command(["evaluate", "voc07", str(run), str(scenes), "--jobs", "1"]) == 0
    assert "voc07_map" in command.out
    (record,) = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert record["protocol"] == "voc07"
    assert set(record["metrics"]) == {
        "voc07_map",
        "voc07_map_all_points",
        *(f"voc07/{name}" for name in SHAPES),
    }
    details = record["details"]
    assert (details["train_images"], details["test_images"], details["skipped"]) == (60, 30, 0)
    assert record["metrics"]["voc07_map"] > details["chance"]


def test_unreadable_images_are_left_out_with_their_targets(
    trained: Path, scenes: Path, tmp_path: Path
) -> None:
    base = spoilt(scenes, tmp_path)
    for name in ("000001", "000070"):
        (base / "JPEGImages" / f"{name}.jpg").write_bytes(b"not an image")
    console = Console(record=True, quiet=False, file=(tmp_path / "said").open("w"))
    broken = run_voc07(load(trained), open_voc(base), console, QUICK)
    assert broken.details["skipped"] == 2
    assert "Skipped 1 unreadable images of trainval" in console.export_text()
    for split, name in (("trainval", "000001"), ("test", "000070")):
        for path in (base / "ImageSets" / "Main").glob(f"*{split}.txt"):
            kept = [line for line in path.read_text().splitlines() if not line.startswith(name)]
            path.write_text("\n".join(kept))
    without = run_voc07(load(trained), open_voc(base), Console(quiet=True), QUICK)
    assert broken.metrics == pytest.approx(without.metrics, abs=1e-6)


@pytest.mark.parametrize(
    ("split", "label", "phrases"),
    [
        ("trainval", -1, ["trainval has 0 images with the class 'star', and 3 are needed"]),
        ("trainval", 1, ["trainval has 0 images without the class 'star'"]),
        ("test", -1, ["test has 0 images with the class 'star', and 1 are needed"]),
    ],
)
def test_an_empty_class_is_refused_before_anything_is_encoded(
    split: str,
    label: int,
    phrases: list[str],
    command: CommandLine,
    trained: Path,
    scenes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = spoilt(scenes, tmp_path) / "ImageSets" / "Main" / f"star_{split}.txt"
    lines = [f"{line.split()[0]} {label}" for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    monkeypatch.setattr("imsvd.evaluation.voc07.encode_source", None)
    command.refuses(["evaluate", "voc07", str(trained), str(tmp_path / "voc")], *phrases)


def test_wrong_folders_are_one_sentence(
    command: CommandLine, trained: Path, scenes: Path, tmp_path: Path
) -> None:
    command.refuses(
        ["evaluate", "voc07", str(trained), str(tmp_path)], "does not have the layout of VOC"
    )
    command.refuses(["evaluate", "voc07", str(tmp_path), str(scenes)], "is not a run folder")


def test_features_of_two_encoders_or_with_nan_are_refused() -> None:
    train, test = random_split(80, 0), random_split(50, 1)
    with pytest.raises(InputError, match="same encoder"):
        voc07(train, test._replace(features=test.features[:, :3]), ("cat", "dog"), QUICK)
    with pytest.raises(InputError, match="NaN or infinity"):
        voc07(train._replace(features=train.features / 0), test, ("cat", "dog"), QUICK)


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


RANKINGS = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30).filter(
    lambda ranking: any(positive for _, positive in ranking)
)


def both(scores: list[float], positives: list[int]) -> tuple[float, float]:
    values, labels = np.array(scores, dtype=float), np.array(positives, dtype=bool)
    return (
        eleven_point_average_precision(values, labels),
        all_point_average_precision(values, labels),
    )


def test_by_hand() -> None:
    # Precisions 1, 1/2, 2/3, 3/4, 3/5 at recalls 1/3, 1/3, 2/3, 1, 1: the best at recall 0 to 0.3
    # or more is 1, at 0.4 to 1 it is 3/4.
    eleven, every = both([5, 4, 3, 2, 1], [1, 0, 1, 1, 0])
    assert eleven == pytest.approx((4 * 1 + 7 * 0.75) / 11, abs=1e-12)
    assert every == pytest.approx(1 / 3 + 2 / 3 * 0.75, abs=1e-12)


def test_perfect_and_worst_rankings() -> None:
    assert both([2, 1, 0], [1, 1, 0]) == (1.0, 1.0)
    assert both([2, 1, 0], [0, 0, 1]) == pytest.approx((1 / 3, 1 / 3))


def test_a_recall_of_three_tenths_is_three_tenths() -> None:
    # 0.1 + 0.1 + 0.1 > 3/10 in floating point, which would lose the fourth point.
    labels = [1] * 3 + [0] * 10 + [1] * 7
    eleven, _ = both(list(range(20, 0, -1)), labels)
    assert eleven == pytest.approx((4 * 1 + 7 * 0.5) / 11, abs=1e-12)


def test_ties_share_a_rank_whatever_their_order() -> None:
    assert both([1, 1, 1, 1], [1, 0, 0, 1]) == both([1, 1, 1, 1], [0, 1, 1, 0]) == (0.5, 0.5)


@settings(max_examples=100, deadline=None)
@given(RANKINGS)
def test_both_equal_the_literal_definitions(ranking: list[tuple[int, bool]]) -> None:
    scores = [float(score) for score, _ in ranking]
    positives = [positive for _, positive in ranking]
    eleven, every = both(scores, [int(positive) for positive in positives])
    assert eleven == pytest.approx(oracle.eleven_point(scores, positives), abs=1e-12)
    assert every == pytest.approx(oracle.all_point(scores, positives), abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "positives", "phrase"),
    [
        ([1.0, 2.0], [0, 0], "without positive"),
        ([1.0], [1, 0], "labels"),
        ([1.0, float("nan")], [1, 0], "must be finite"),
    ],
)
def test_what_has_no_average_precision(
    scores: list[float], positives: list[int], phrase: str
) -> None:
    with pytest.raises(ValueError, match=phrase):
        both(scores, positives)
