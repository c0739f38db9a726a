"""Measures of codes on held-out images."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from imsvd.discretizing.feature_file import Half
from imsvd.discretizing.held_out import (
    measure_codes,
    one_hot_codes,
    shared_nats,
    unrepeated_share,
)
from tests.oracles import repetition as oracle

UNITS = (4, 4)


def counts(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    hard = torch.cat([nn.functional.one_hot(part, 4) for part in (first, second)], 1).double()
    return hard.T @ hard


def test_equal_variables_share_everything_and_independent_ones_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, 4, (2, 4000), generator=generator)
    assert shared_nats(counts(first, first), UNITS) == pytest.approx(math.log(4), abs=0.01)
    assert shared_nats(counts(first, second), UNITS) == pytest.approx(0, abs=0.001)


def test_chance_is_subtracted_from_few_images() -> None:
    generator = torch.Generator().manual_seed(0)
    values = [
        shared_nats(counts(*torch.randint(0, 4, (2, 100), generator=generator)), UNITS)
        for _ in range(200)
    ]
    assert abs(float(np.mean(values))) < 0.01  # 0.045 without the correction


def test_a_single_variable_shares_nothing() -> None:
    assert shared_nats(torch.eye(4), (4,)) == 0


def test_codes_of_made_up_features() -> None:
    # The head passes features on as logits: decided in the plain image, equal in half of the views.
    features = np.zeros((6, 3, 8), np.float16)
    features[:, :, 0] = features[:, 0, 4] = features[:, 1, 5] = 9
    features[:, 2, 6] = 1
    head = nn.Linear(8, 8, bias=False)
    nn.init.eye_(head.weight)
    found = measure_codes(head, features, np.arange(4), UNITS)
    assert found["share_decided"] == 0.5
    assert found["share_agreeing"] == 0.5
    assert found["shared_nats"] == pytest.approx(0)
    assert found["surviving_nats"] == pytest.approx(0)
    assert found["unrepeated_share"] == 1


def code_features(*views: NDArray[np.int64]) -> Half:
    """Return features whose logits are the codes (n, 2) of two views and of the plain image."""
    eye = 9 * np.eye(4, dtype=np.float16)
    return np.stack([eye[view].reshape(len(view), -1) for view in views], 1)


def identity_head() -> nn.Module:
    head = nn.Linear(8, 8, bias=False)
    nn.init.eye_(head.weight)
    return head


def test_information_that_lasts_is_counted_once() -> None:
    random = np.random.default_rng(0)
    free = random.integers(0, 4, (4000, 2))
    copies = free[:, [0, 0]]
    changed = random.integers(0, 4, (4000, 2))
    rows = np.arange(4000)
    independent = measure_codes(identity_head(), code_features(free, free, free), rows, UNITS)
    assert independent["surviving_nats"] == pytest.approx(2 * math.log(4), abs=0.02)
    assert independent["unrepeated_share"] == pytest.approx(1, abs=0.01)
    repeated = measure_codes(identity_head(), code_features(copies, copies, copies), rows, UNITS)
    assert repeated["surviving_nats"] == pytest.approx(2 * math.log(4), abs=0.02)
    assert repeated["unrepeated_share"] == pytest.approx(0.5, abs=0.05)
    fleeting = measure_codes(identity_head(), code_features(free, changed, free), rows, UNITS)
    assert fleeting["surviving_nats"] == pytest.approx(0, abs=0.01)


def noisy(codes: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Return `codes` (n, m) of 4 units, of which `share` are drawn again."""
    random = np.random.default_rng(seed)
    return np.where(random.random(codes.shape) < share, random.integers(0, 4, codes.shape), codes)


def share_of(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    one, other = (torch.from_numpy(np.eye(4)[c].reshape(len(c), -1)) for c in (first, second))
    return unrepeated_share(
        one.T @ one, other.T @ other, one.T @ other, (4,) * first.shape[1], len(first)
    )


@pytest.mark.parametrize("images", [400, 4000])
def test_what_variables_repeat_is_told_from_chance(images: int) -> None:
    # Ten independent variables: thirty free frequencies look dependent in few images.
    free = np.random.default_rng(0).integers(0, 4, (images, 10))
    assert share_of(noisy(free, 0.3, 1), noisy(free, 0.3, 2)) > 0.95
    copies = np.arange(10) // 2
    assert share_of(noisy(free, 0.3, 1)[:, copies], noisy(free, 0.3, 2)[:, copies]) < 0.6


def test_the_share_is_that_of_gaussian_canonical_correlations() -> None:
    free = np.random.default_rng(0).integers(0, 4, (20_000, 3))
    codes = free[:, [0, 0, 1, 2]]
    first, second = noisy(codes, 0.05, 1), noisy(codes, 0.1, 2)
    assert share_of(first, second) == pytest.approx(
        oracle.unrepeated_share(first, second), abs=0.01
    )


def test_unused_units_and_too_few_images() -> None:
    codes = np.random.default_rng(0).integers(0, 3, (500, 2))  # the fourth unit is never taken
    assert share_of(noisy(codes, 0, 1), codes) == pytest.approx(1, abs=0.05)
    assert math.isnan(share_of(codes[:9], codes[:9]))
    assert share_of(codes * 0, codes * 0) == 1  # nothing is said, and nothing repeated


def test_one_hot_codes_name_the_most_probable_unit() -> None:
    q = torch.tensor([[0.1, 0.6, 0.3, 0.5, 0.4]])
    assert one_hot_codes(q, (3, 2)).tolist() == [[0, 1, 0, 1, 0]]
