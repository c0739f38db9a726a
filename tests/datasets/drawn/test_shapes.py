import itertools
import pickle
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from imsvd.datasets.drawn.drawing import BACKGROUND_COLORS, COLORS
from imsvd.datasets.drawn.shapes import LIGHTS, ShapesSource

MANY = ShapesSource(count=20_000)
NAMES = tuple(MANY.attributes)


def where(source: ShapesSource, **wanted: str) -> list[int]:
    """Indices of the pictures whose attributes have the given values."""
    chosen = torch.ones(len(source), dtype=torch.bool)
    for name, value in wanted.items():
        chosen &= source.attributes[name] == source.attribute_values[name].index(value)
    return torch.nonzero(chosen).flatten().tolist()


def chi_square_excess(table: Tensor) -> float:
    """Standard deviations by which a contingency table (a, b) exceeds independence."""
    table = table.double()
    expected = table.sum(1, keepdim=True) * table.sum(0, keepdim=True) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float((statistic - freedom) / (2 * freedom) ** 0.5)


def test_enough_of_everything() -> None:
    counts = {name: len(values) for name, values in MANY.attribute_values.items()}
    assert len(counts) == 8
    assert min(counts.values()) >= 2
    assert counts["shape"] == counts["position"] == 4
    assert MANY.labels is MANY.attributes["shape"]
    assert MANY.classes == MANY.attribute_values["shape"]
    assert all(values.dtype == torch.int64 for values in MANY.attributes.values())


def test_a_picture_depends_on_nothing_but_its_key() -> None:
    source = ShapesSource(count=400)
    whole = source.render(range(400))
    assert whole.shape == (400, 3, 32, 32)
    assert whole.dtype == torch.uint8
    order = random.Random(0).sample(range(400), 37)
    assert torch.equal(source.render(order), whole[order])
    assert all(torch.equal(source.read(index), whole[index]) for index in order)
    np.random.seed(1)  # noqa: NPY002 - the global generator must not matter
    torch.manual_seed(1)
    again = pickle.loads(pickle.dumps(ShapesSource(count=4000)))
    assert torch.equal(again.render(order), whole[order])


def test_pictures_stay_as_they_are_between_versions() -> None:
    """Scores are comparable only while the pictures do not change: mean values of the first ten."""
    means = ShapesSource().render(range(10)).double().mean((1, 2, 3))
    recorded = [173.8, 78.8, 74.7, 78.5, 183.2, 83.2, 83.5, 77.8, 82.3, 186.7]
    assert means.tolist() == pytest.approx(recorded, abs=0.5)


def test_seeds_and_splits_give_other_pictures() -> None:
    pictures = [
        picture.numpy().tobytes()
        for source in (ShapesSource("train"), ShapesSource("test"), ShapesSource("train", seed=1))
        for picture in source.render(range(2000))
    ]
    assert len(set(pictures)) == 6000


def test_splits_share_no_key() -> None:
    indices = np.arange(100_000)
    keys = [ShapesSource(split, count=1)._keys(indices) for split in ("train", "test")]
    assert len(np.unique(np.concatenate(keys))) == 200_000


@pytest.mark.parametrize("name", NAMES)
def test_values_are_equally_frequent(name: str) -> None:
    counts = torch.bincount(MANY.attributes[name], minlength=len(MANY.attribute_values[name]))
    expected = len(MANY) / len(counts)
    assert len(counts) == len(MANY.attribute_values[name])
    assert ((counts - expected).abs() < 5 * expected**0.5).all()


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(NAMES, 2)))
def test_attributes_are_independent(first: str, second: str) -> None:
    table = torch.zeros(*(len(MANY.attribute_values[name]) for name in (first, second)))
    pairs = (MANY.attributes[first], MANY.attributes[second])
    table.index_put_(pairs, torch.ones(len(MANY)), accumulate=True)
    assert abs(chi_square_excess(table)) < 4.5


def test_the_independence_test_can_fail() -> None:
    assert chi_square_excess(torch.tensor([[60.0, 40.0], [40.0, 60.0]])) > 4.5


@pytest.mark.parametrize("color", ["red", "blue"])
def test_the_middle_of_a_solid_shape_has_its_color(color: str) -> None:
    wanted = {"color": color, "texture": "solid", "size": "large", "position": "top left"}
    chosen = [
        index for shape in ("circle", "cross") for index in where(MANY, shape=shape, **wanted)
    ]
    assert len(chosen) >= 5
    expected = torch.tensor(COLORS[color][0])
    for picture in MANY.render(chosen):
        pixel = picture[:, 13, 13].double()
        # Lighting changes brightness, not hue: compare directions.
        cosine = torch.nn.functional.cosine_similarity(pixel, expected.double(), dim=0)
        assert cosine > 0.995


def test_gray_hides_the_color() -> None:
    """Else a view could not spoil it."""
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    red, blue = (torch.tensor(COLORS[name][0]).double() @ weights for name in ("red", "blue"))
    assert abs(red - blue) < 5


@pytest.mark.parametrize("light", LIGHTS)
def test_the_corner_has_the_background_color_in_its_light(light: str) -> None:
    chosen = where(MANY, light=light, background="horizon", position="bottom right", size="small")
    pixels = MANY.render(chosen)[:, :, 0, 0].double()
    expected = torch.tensor(BACKGROUND_COLORS["mauve"]).double()
    assert len(chosen) >= 5
    assert (torch.nn.functional.cosine_similarity(pixels, expected[None]) > 0.999).all()
    assert float(pixels.mean()) == pytest.approx(LIGHTS[light] * float(expected.mean()), rel=0.2)


def ink(pictures: Tensor) -> Tensor:
    """Where a solid red shape is, (n, size, size): much more red than green."""
    return (pictures[:, 0].int() - pictures[:, 1].int()) > 80


def test_size_and_position_are_as_drawn() -> None:
    areas = []
    for size in ("small", "large"):
        chosen = where(
            MANY, size=size, shape="circle", color="red", texture="solid", light="bright"
        )
        masks = ink(MANY.render(chosen))
        areas.append(masks.sum((1, 2)).double().mean())
        centers = [torch.nonzero(mask).double().mean(0) for mask in masks]
        for index, center in zip(chosen, centers, strict=True):
            row, column = divmod(int(MANY.attributes["position"][index]), 2)
            expected = torch.tensor([15.5 + 2.88 * (2 * row - 1), 15.5 + 2.88 * (2 * column - 1)])
            assert (center - expected).abs().max() < 1.8
    assert areas[0] * 2 < areas[1]


def test_rotation_is_as_drawn() -> None:
    """The tip of a triangle leans to the side it is turned to."""
    source = ShapesSource(count=60_000, size=64)
    for rotation, sign in (("left", -1), ("upright", 0), ("right", 1)):
        wanted = {"shape": "triangle", "color": "red", "texture": "solid", "light": "bright"}
        chosen = where(source, rotation=rotation, size="small", **wanted)[:200]
        assert len(chosen) >= 10
        for mask in ink(source.render(chosen)):
            points = torch.nonzero(mask).double()
            center = points.mean(0)
            tip = points[points[:, 0] < points[:, 0].min() + 2].mean(0)
            lean = float((tip[1] - center[1]) / (center[0] - tip[0]))
            assert abs(lean) < 0.2 if sign == 0 else sign * lean > 0.2


@pytest.mark.parametrize("size", [16, 17, 48, 96, 224])
def test_any_size(size: int) -> None:
    source = ShapesSource(count=20, size=size)
    pictures = source.render(range(20))
    assert pictures.shape == (20, 3, size, size)
    assert source.size(0) == (size, size)
    # The same scene at another resolution: shrunk, it is close to the small drawing.
    small = torch.nn.functional.interpolate(pictures.double(), size=16, mode="area")
    reference = ShapesSource(count=20, size=16).render(range(20)).double()
    assert (small - reference).abs().mean() < 8


def test_too_small_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 px"):
        ShapesSource(size=15)


def test_an_index_beyond_the_end_is_an_error() -> None:
    with pytest.raises(IndexError):
        ShapesSource(count=5).read(5)


def test_the_fingerprint_follows_the_arguments() -> None:
    prints = {
        ShapesSource(split, count, size, seed).fingerprint()
        for split in ("train", "test")
        for count in (5, 6)
        for size in (16, 32)
        for seed in (0, 1)
    }
    assert len(prints) == 16
    assert ShapesSource().fingerprint() == ShapesSource().fingerprint()
