import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from imsvd.errors import InputError
from imsvd.evaluation import LinearProbeSettings, linear_probe


def clusters(rows: int, seed: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Overlapping classes in dimensions of very different scale and offset."""
    width = 24
    shared = torch.Generator().manual_seed(7)
    centers = torch.randn(num_classes, width, generator=shared)
    scales = torch.logspace(-2, 2, width)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, num_classes, (rows,), generator=generator)
    features = centers[labels] + 2 * torch.randn(rows, width, generator=generator)
    return features * scales + 3 * scales, labels


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_accuracy_equals_scikit_learn(num_classes: int, l2: float) -> None:
    train, labels = clusters(600, 0, num_classes)
    test, truth = clusters(2000, 1, num_classes)
    scaler = StandardScaler().fit(train.double())
    # With two classes scikit-learn has one weight vector, the difference of our two, and so
    # regularizes it twice as hard: ½‖w‖² against ½(‖w/2‖² + ‖w/2‖²).
    strength = 1 / (l2 * len(train)) * (2 if num_classes == 2 else 1)
    oracle = LogisticRegression(C=strength, tol=1e-8, max_iter=10_000)
    oracle.fit(scaler.transform(train.double()), labels)
    expected = 100 * oracle.score(scaler.transform(test.double()), truth)
    assert 100 / num_classes + 5 < expected < 95
    found = linear_probe(train, labels, test, truth, LinearProbeSettings(l2=l2))
    assert found["linear_probe_top1"] == pytest.approx(expected, abs=0.1)


def test_top5_appears_beyond_five_classes_and_counts_five_guesses() -> None:
    train, labels = clusters(600, 0, num_classes=10)
    test, truth = clusters(500, 1, num_classes=10)
    metrics = linear_probe(train, labels, test, truth)
    assert metrics["linear_probe_top1"] + 5 < metrics["linear_probe_top5"] < 100
    fewer = linear_probe(train, labels % 5, test, truth % 5)
    assert list(fewer) == ["linear_probe_top1"]


def test_the_same_input_gives_the_same_result_and_leaves_the_generator_alone() -> None:
    train, labels = clusters(300, 0, num_classes=6)
    state = torch.get_rng_state()
    first = linear_probe(train, labels, train, labels)
    assert linear_probe(train, labels, train, labels) == first
    assert torch.equal(torch.get_rng_state(), state)


def test_it_fits_even_where_gradients_are_switched_off() -> None:
    train, labels = clusters(300, 0, num_classes=3)
    with torch.no_grad():
        silent = linear_probe(train, labels, train, labels)
    assert silent == linear_probe(train, labels, train, labels)


def test_constant_dimensions_change_nothing() -> None:
    train, labels = clusters(300, 0, num_classes=3)
    test, truth = clusters(300, 1, num_classes=3)
    constant = torch.tensor([0.0, 12345.678])
    padded = linear_probe(
        torch.cat((train, constant.expand(300, 2)), dim=1),
        labels,
        torch.cat((test, constant.expand(300, 2)), dim=1),
        truth,
    )
    assert padded == linear_probe(train, labels, test, truth)


def test_labels_may_have_gaps_and_unknown_test_classes_count_as_missed() -> None:
    train = torch.tensor([[-1.0], [-2.0], [1.0], [2.0]])
    labels = torch.tensor([3, 3, 8, 8])
    test, truth = torch.tensor([[-3.0], [3.0], [3.0], [-3.0]]), torch.tensor([3, 8, 5, 8])
    assert linear_probe(train, labels, test, truth) == {"linear_probe_top1": 50.0}


def test_stopping_short_is_said_aloud() -> None:
    train, labels = clusters(300, 0, num_classes=6)
    with pytest.warns(RuntimeWarning, match="raise max_iterations"):
        linear_probe(train, labels, train, labels, LinearProbeSettings(max_iterations=1))


@pytest.mark.filterwarnings("error")
def test_separable_features_converge_quietly() -> None:
    features = torch.eye(40).repeat(4, 1)
    metrics = linear_probe(features, torch.arange(160) % 40, features, torch.arange(160) % 40)
    assert metrics == {"linear_probe_top1": 100.0, "linear_probe_top5": 100.0}


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="two classes"):
        linear_probe(torch.ones(3, 2), torch.zeros(3), torch.ones(3, 2), torch.zeros(3))
