"""Directions of features in which images differ more than their views do."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from imsvd.discretizing import directions
from imsvd.discretizing.directions import FeatureDirections, lasting_directions
from imsvd.networks import projector
from tests.oracles import directions as oracle


def drawn(images: int, views: int, width: int, seed: int = 0) -> NDArray[np.float16]:
    """Return features of images that differ in all directions, and whose views do unequally."""
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(width, width))
    images_part = random.normal(size=(images, 1, width)) @ mixed
    views_part = random.normal(size=(images, views + 1, width)) * np.linspace(0.2, 2, width)
    return (3 + images_part + views_part).astype(np.float16)


@pytest.mark.parametrize("chunk", [7, 1024])
def test_they_solve_the_definition(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directions, "CHUNK", chunk)
    features = drawn(200, 3, 6)
    found = lasting_directions(features, np.arange(200), 4, seed=0)
    ratios, vectors = oracle.lasting_directions(
        features.astype(np.float64), 4, directions.SHRINKAGE
    )
    expected = vectors / np.sqrt(ratios.mean())
    signs = np.sign((found.matrix.numpy() * expected).sum(0))
    np.testing.assert_allclose(found.matrix.numpy() * signs, expected, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(found.mean, features[:, -1].astype(float).mean(0), rtol=1e-5)
    coordinates = found(torch.from_numpy(features[:, -1].astype(np.float32)))
    assert coordinates.var(0, correction=0).mean().item() == pytest.approx(1, abs=1e-4)


def test_what_lasts_comes_before_what_varies_most() -> None:
    random = np.random.default_rng(1)
    lasting = random.normal(size=(500, 1)).repeat(4, 1)
    changing = 2 * random.normal(size=(500, 4))
    features = np.stack([changing, lasting], -1).astype(np.float16)
    first = lasting_directions(features, np.arange(500), 1, seed=0).matrix[:, 0]
    assert first[1].abs() > 10 * first[0].abs()


def test_only_the_named_images_count() -> None:
    features = drawn(60, 2, 4)
    spoiled = features.copy()
    spoiled[1::2] = 100
    rows = np.arange(0, 60, 2)
    expected = lasting_directions(features, rows, 4, seed=0)
    assert torch.equal(lasting_directions(spoiled, rows, 4, seed=0).matrix, expected.matrix)


def test_of_many_images_a_sample_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    features, rows = drawn(300, 2, 4), np.arange(300)
    whole = lasting_directions(features, rows, 4, seed=0).matrix
    monkeypatch.setattr(directions, "SAMPLE", 100)
    samples = [lasting_directions(features, rows, 4, seed=seed).matrix for seed in (0, 0, 1)]
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])
    assert not torch.equal(samples[0], whole)


@pytest.mark.parametrize("images", [2, 5])
def test_few_images_give_few_directions(images: int) -> None:
    found = lasting_directions(drawn(images, 2, 16), np.arange(images), 8, seed=0)
    assert found.num_features == min(8, images - 1)
    assert found.matrix.isfinite().all()


def test_equal_features_stay_finite() -> None:
    found = lasting_directions(np.ones((9, 3, 4), np.float16), np.arange(9), 4, seed=0)
    assert found(torch.ones(2, 4)).isfinite().all()


@pytest.mark.parametrize("widths", [(6, 8, 5), (6, 5)])
def test_folded_into_a_layer_it_gives_the_same(widths: tuple[int, ...]) -> None:
    found = lasting_directions(drawn(100, 2, 9), np.arange(100), 6, seed=0)
    if len(widths) == 2:
        found = found.around_origin()
    head = projector(widths).eval()
    folded = projector((9, *widths[1:])).eval()
    folded.load_state_dict(
        {
            name.removeprefix("head."): value
            for name, value in found.fold(
                {f"head.{name}": value for name, value in head.state_dict().items()}, "head.0"
            ).items()
        }
    )
    features = 5 * torch.randn(20, 9)
    torch.testing.assert_close(folded(features), head(found(features)), rtol=1e-4, atol=1e-4)


def test_a_layer_without_bias_takes_no_shift() -> None:
    moved = FeatureDirections(torch.ones(3), torch.eye(3))
    with pytest.raises(AssertionError):
        moved.fold({"head.0.weight": torch.ones(2, 3)}, "head.0")
