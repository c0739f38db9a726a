"""Neighbors of images by features."""

import numpy as np
import pytest
import torch
from rich.console import Console

from imsvd.discretizing import neighborhoods
from imsvd.discretizing.neighborhoods import feature_neighbors
from imsvd.pretraining.code import GivenFeatures

QUIET = Console(quiet=True)
CPU = torch.device("cpu")
AS_GIVEN = GivenFeatures(8)


def test_the_nearest_other_images_are_found() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(50, 3, 8)).astype(np.float16)
    rows = np.arange(0, 50, 2)
    found = feature_neighbors(features, rows, 3, 0, AS_GIVEN, CPU, QUIET)
    plain = features[rows, -1].astype(np.float64)
    plain /= np.linalg.norm(plain, axis=1, keepdims=True)
    similarity = plain @ plain.T
    np.fill_diagonal(similarity, -2)
    np.testing.assert_array_equal(found, rows[np.argsort(-similarity, axis=1)[:, :3]])


def test_equal_images_are_each_others_neighbors_but_not_their_own() -> None:
    features = np.ones((6, 2, 4), np.float16)
    found = feature_neighbors(features, np.arange(6), 2, 0, AS_GIVEN, CPU, QUIET)
    assert (found != np.arange(6)[:, None]).all()


def test_many_images_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighborhoods, "BLOCK", 16)
    random = np.random.default_rng(0)
    features = random.normal(size=(60, 2, 8)).astype(np.float16)
    rows = np.arange(60)
    found = feature_neighbors(features, rows, 4, 0, AS_GIVEN, CPU, QUIET)
    assert (found != rows[:, None]).all()
    plain = features[:, -1].astype(np.float64)
    plain /= np.linalg.norm(plain, axis=1, keepdims=True)
    near = (plain[rows, None] * plain[found]).sum(-1).mean()
    assert near > (plain @ plain.T).mean() + 0.3
    assert (feature_neighbors(features, rows, 4, 0, AS_GIVEN, CPU, QUIET) == found).all()
    assert (feature_neighbors(features, rows, 4, 1, AS_GIVEN, CPU, QUIET) != found).any()
