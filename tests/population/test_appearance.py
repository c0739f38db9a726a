import numpy as np
import pytest

from imsvd.population.appearance import PROPERTIES, appearance, quarters


def properties(image: np.ndarray) -> dict[str, float]:
    return dict(zip(PROPERTIES, appearance(image).tolist(), strict=True))


def noise(height: int = 40, width: int = 60, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, 200, (3, height, width)).astype(np.uint8)


def test_a_plain_color_has_its_hand_computed_values() -> None:
    image = np.empty((3, 20, 40), np.uint8)
    image[:] = np.array([255, 102, 51])[:, None, None]
    found = properties(image)
    assert found["brightness"] == pytest.approx(0.299 + 0.587 * 0.4 + 0.114 * 0.2, abs=1e-5)
    assert found["contrast"] == pytest.approx(0, abs=1e-5)
    assert found["colorfulness"] == pytest.approx(0.8, abs=1e-5)
    assert found["warmth"] == pytest.approx(0.8, abs=1e-5)
    assert found["tint"] == pytest.approx(0.4 - 0.6, abs=1e-5)
    assert found["pixels"] == pytest.approx(np.log(800), abs=1e-5)
    assert found["shape"] == pytest.approx(np.log(2), abs=1e-5)
    assert np.isfinite(found["sharpness"])


def test_sharpness_falls_with_blur_and_not_with_contrast() -> None:
    image = noise()
    padded = np.pad(image.astype(float), ((0, 0), (1, 1), (1, 1)), mode="edge")
    blurred = np.mean(
        [padded[:, y : y + 40, x : x + 60] for y in range(3) for x in range(3)], axis=0
    )
    weaker = 100 + (image.astype(float) - 100) / 2
    before = properties(image)
    assert properties(blurred.astype(np.uint8))["sharpness"] < before["sharpness"] - 0.5
    assert properties(weaker.astype(np.uint8))["sharpness"] == pytest.approx(
        before["sharpness"], abs=0.02
    )
    assert properties(weaker.astype(np.uint8))["contrast"] < 0.6 * before["contrast"]


def test_large_photographs_are_sampled_and_cropped_in_the_middle() -> None:
    image = np.zeros((3, 1100, 1600), np.uint8)
    image[:, 294:806, 544:1056] = noise(512, 512)
    center = properties(np.ascontiguousarray(image[:, 294:806, 544:1056]))
    found = properties(image)
    assert found["sharpness"] == pytest.approx(center["sharpness"], abs=1e-6)
    assert found["brightness"] == pytest.approx((image / 255).mean(), rel=0.02)


def test_quarters_are_those_of_both_sets_and_ties_stay_together() -> None:
    first = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]], np.float32)
    second = np.array([[4.0, 1.0], [5.0, 1.0], [6.0, 1.0], [7.0, 1.0]], np.float32)
    a, b = quarters(first, second)
    assert a[:, 0].tolist() == [0, 0, 1, 1]
    assert b[:, 0].tolist() == [2, 2, 3, 3]
    assert len({*a[:, 1].tolist(), *b[:, 1].tolist()}) == 1
