"""Parameters are distributed as torchvision's own samplers distribute them."""

import math
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision.transforms import v2

from imsvd.views import ViewParameters, ViewSettings, sample_parameters

SAMPLES = 20_000
REFERENCE_SAMPLES = 4_000
EVERYTHING = ViewSettings(size=32, saturation=0.3, blur_probability=0.3, solarize_probability=0.2)


def draw(
    settings: ViewSettings, height: int = 32, width: int = 32, count: int = SAMPLES, **key: Any
) -> ViewParameters:
    key = {"seed": 0, "epoch": 0, "view": 0, "indices": np.arange(count), **key}
    count = len(key["indices"])
    return sample_parameters(settings, np.full(count, height), np.full(count, width), **key)


def same_distribution(one: npt.ArrayLike, other: npt.ArrayLike) -> bool:
    """Two-sample Kolmogorov-Smirnov test; a true match fails once in a hundred thousand times."""
    first, second = np.sort(np.asarray(one)), np.sort(np.asarray(other))
    points = np.concatenate((first, second))
    distance = np.abs(
        np.searchsorted(first, points, side="right") / len(first)
        - np.searchsorted(second, points, side="right") / len(second)
    ).max()
    critical = math.sqrt(-math.log(1e-5 / 2) / 2)
    return bool(distance < critical * math.sqrt(1 / len(first) + 1 / len(second)))


def test_the_test_of_distributions_can_fail() -> None:
    sampled = draw(EVERYTHING)
    assert not same_distribution(sampled.brightness, sampled.brightness[:REFERENCE_SAMPLES] + 0.05)
    other = draw(EVERYTHING.model_copy(update={"crop_scale": (0.15, 1.0)}), count=REFERENCE_SAMPLES)
    assert not same_distribution(sampled.height, other.height)


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [
        (32, 32, (0.2, 1.0)),
        (375, 500, (0.08, 1.0)),
        (40, 90, (0.6, 1.0)),  # most attempts fail
        (90, 40, (0.3, 1.0)),
        (9, 7, (0.01, 0.1)),  # some crops round to nothing
    ],
)
def test_crops_are_distributed_as_torchvisions(
    height: int, width: int, scale: tuple[float, float]
) -> None:
    torch.manual_seed(1)
    reference = v2.RandomResizedCrop(32, scale=scale)
    image = torch.empty((3, height, width), dtype=torch.uint8)
    drawn = [reference.make_params([image]) for _ in range(REFERENCE_SAMPLES)]
    ours = draw(ViewSettings(size=32, crop_scale=scale), height, width)._asdict()
    for side in ("top", "left", "height", "width"):
        assert same_distribution(ours[side], [crop[side] for crop in drawn]), side
    for edge, extent in (("bottom", ("top", "height")), ("right", ("left", "width"))):
        start, length = extent
        assert same_distribution(
            ours[start] + ours[length], [crop[start] + crop[length] for crop in drawn]
        ), edge
    assert same_distribution(
        ours["width"] / ours["height"], [crop["width"] / crop["height"] for crop in drawn]
    )


@pytest.mark.parametrize(("height", "width"), [(500, 60), (60, 500), (1, 40), (40, 1)])
def test_images_no_crop_fits_get_torchvisions_central_crop(height: int, width: int) -> None:
    scale = (0.9, 1.0)
    reference = v2.RandomResizedCrop(32, scale=scale)
    expected = reference.make_params([torch.empty((3, height, width))])
    ours = draw(ViewSettings(size=32, crop_scale=scale), height, width, count=50)
    for side in ("top", "left", "height", "width"):
        assert set(getattr(ours, side).tolist()) == {expected[side]}, side


def test_crops_lie_inside_images_of_mixed_sizes() -> None:
    random = np.random.default_rng(0)
    heights, widths = random.integers(1, 200, (2, SAMPLES))
    crops = sample_parameters(
        EVERYTHING, heights, widths, seed=0, epoch=0, indices=np.arange(SAMPLES), view=0
    )
    assert (crops.top >= 0).all()
    assert (crops.left >= 0).all()
    assert (crops.height > 0).all()
    assert (crops.width > 0).all()
    assert (crops.top + crops.height <= heights).all()
    assert (crops.left + crops.width <= widths).all()


def test_color_factors_are_distributed_as_torchvisions() -> None:
    torch.manual_seed(2)
    strengths = {"brightness": 0.4, "contrast": 1.5, "saturation": 0.2, "hue": 0.1}
    reference = v2.ColorJitter(**strengths)
    drawn = [reference.make_params([]) for _ in range(REFERENCE_SAMPLES)]
    ours = draw(ViewSettings.model_validate({"size": 32, **strengths}))._asdict()
    for name in strengths:
        assert same_distribution(ours[name], [factors[f"{name}_factor"] for factors in drawn]), name


def test_every_order_of_color_operations_is_equally_likely() -> None:
    order = draw(EVERYTHING).order
    counts = [int((order == row).all(axis=1).sum()) for row in permutations(range(4))]
    assert sum(counts) == SAMPLES
    expected = SAMPLES / 24
    # 23 degrees of freedom: exceeded once in ten thousand times.
    assert sum((count - expected) ** 2 / expected for count in counts) < 58


def test_chances_and_blur_widths() -> None:
    sampled = draw(EVERYTHING)
    chances = {"flip": 0.5, "jitter": 0.8, "gray": 0.2, "blur": 0.3, "solarize": 0.2}
    for name, chance in chances.items():
        margin = 4.5 * math.sqrt(chance * (1 - chance) / SAMPLES)
        assert abs(getattr(sampled, name).mean() - chance) < margin, name
    torch.manual_seed(3)
    reference = v2.GaussianBlur(23, sigma=(0.1, 2.0))
    widths = [reference.make_params([])["sigma"][0] for _ in range(REFERENCE_SAMPLES)]
    assert same_distribution(sampled.blur_sigma, widths)


def test_certain_and_impossible_operations() -> None:
    names = ("flip", "jitter", "gray", "blur", "solarize")
    always, never = (
        EVERYTHING.model_copy(update={f"{name}_probability": chance for name in names})
        for chance in (1.0, 0.0)
    )
    for name in names:
        assert getattr(draw(always), name).all(), name
        assert not getattr(draw(never), name).any(), name


def test_parameters_are_independent_of_each_other() -> None:
    sampled = draw(EVERYTHING)
    columns = [column.astype(float) for column in sampled if column.ndim == 1]
    names = [name for name, column in sampled._asdict().items() if column.ndim == 1]
    correlation = np.corrcoef(columns)
    geometry = {"top", "left", "height", "width"}
    for i, one in enumerate(names):
        for j, other in enumerate(names[:i]):
            if not {one, other} <= geometry:
                assert abs(correlation[i, j]) < 4.5 / math.sqrt(SAMPLES), (one, other)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    rows = np.random.default_rng(0).permutation(500)
    together = draw(EVERYTHING, 40, 90, count=500)
    shuffled = draw(EVERYTHING, 40, 90, indices=rows)
    alone = draw(EVERYTHING, 40, 90, indices=np.array([17]))
    for name, column in together._asdict().items():
        assert np.array_equal(column[rows], getattr(shuffled, name)), name
        assert np.array_equal(column[17:18], getattr(alone, name)), name
        assert np.array_equal(column[rows], getattr(together.select(rows), name)), name


def test_views_epochs_and_seeds_differ() -> None:
    base = draw(EVERYTHING, count=1000)
    for other in (
        draw(EVERYTHING, count=1000, view=1),
        draw(EVERYTHING, count=1000, epoch=1),
        draw(EVERYTHING, count=1000, seed=1),
    ):
        assert abs(np.corrcoef(base.brightness, other.brightness)[0, 1]) < 0.15
        assert (base.order == other.order).all(axis=1).mean() < 0.1


def test_known_parameters_never_change() -> None:
    sampled = sample_parameters(
        EVERYTHING,
        np.array([32, 90]),
        np.array([32, 40]),
        seed=1,
        epoch=2,
        indices=np.array([3, 4]),
        view=1,
    )
    boxes = [column.tolist() for column in sampled[:4]]
    flags = [getattr(sampled, name).tolist() for name in ("flip", "jitter", "gray", "solarize")]
    assert boxes == [[8, 24], [3, 6], [23, 41], [25, 34]]
    assert flags == [[True, False], [True, True], [False, False], [False, False]]
    assert sampled.order.tolist() == [[3, 1, 0, 2], [3, 2, 1, 0]]
    assert np.round(sampled.hue, 6).tolist() == [-0.02503, 0.031343]
