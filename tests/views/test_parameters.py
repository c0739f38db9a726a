"""Parameters are distributed as by torchvision's own samplers, and keyed."""

import math
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

from imsvd.views import ViewParameters, ViewSettings, sample_parameters
from imsvd.views.parameters import keyed_uniforms, philox

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


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_answers_its_authors_published(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    first, second, third, fourth = (np.array([word], dtype=np.uint64) for word in counter)
    assert philox((first, second, third, fourth), key)[0].tolist() == list(expected)


def test_known_answers_never_change() -> None:
    zero = keyed_uniforms(0, 0, np.array([0]), 0, 4)
    published = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert zero[0].tolist() == [word / 2**32 for word in published]
    far = keyed_uniforms(2**64 - 1, 999, np.array([2**40 + 7]), 3, 2, start=5)
    assert (far * 2**32).astype(np.uint64)[0].tolist() == [2358378087, 3627572085]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=30),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10_000),
    st.integers(0, 9),
    st.integers(0, 23),
    st.integers(0, 23),
    st.randoms(use_true_random=False),
)
def test_neither_batch_mates_nor_the_range_asked_for_matter(
    rows: list[int], seed: int, epoch: int, view: int, start: int, draws: int, random: Any
) -> None:
    together = keyed_uniforms(seed, epoch, np.array(rows), view, 50)
    shuffled = random.sample(range(len(rows)), len(rows))
    again = keyed_uniforms(seed, epoch, np.array(rows)[shuffled], view, draws, start=start)
    assert np.array_equal(again, together[shuffled, start : start + draws])
    alone = keyed_uniforms(seed, epoch, np.array(rows[:1]), view, 50)
    assert np.array_equal(alone, together[:1])


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_the_dtype_of_indices_does_not_matter(dtype: type[np.integer[Any]]) -> None:
    plain = keyed_uniforms(1, 2, np.arange(100), 0, 8)
    assert np.array_equal(keyed_uniforms(1, 2, np.arange(100, dtype=dtype), 0, 8), plain)


def test_every_part_of_the_key_counts() -> None:
    index = np.array([5])
    results = [
        keyed_uniforms(1, 1, index, 1, 4),
        keyed_uniforms(2, 1, index, 1, 4),
        keyed_uniforms(1 + 2**32, 1, index, 1, 4),
        keyed_uniforms(1, 2, index, 1, 4),
        keyed_uniforms(1, 1, index + 1, 1, 4),
        keyed_uniforms(1, 1, index + 2**32, 1, 4),
        keyed_uniforms(1, 1, index, 2, 4),
        keyed_uniforms(1, 1, index, 1, 4, start=4),
    ]
    assert len({result.tobytes() for result in results}) == len(results)


def test_draws_are_uniform() -> None:
    values = keyed_uniforms(0, 0, np.arange(50_000), 0, 8)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    expected = values.size / 100
    # 99 degrees of freedom: a fair generator exceeds 161 once in ten thousand times.
    assert ((counts - expected) ** 2 / expected).sum() < 161


def test_neighboring_keys_are_uncorrelated() -> None:
    n = 40_000
    indices = np.arange(n)
    base = keyed_uniforms(3, 7, indices, 0, 5)
    columns = {
        "draw": (base[:, 0], base[:, 1]),
        "block": (base[:, 0], base[:, 4]),
        "sample": (base[:-1, 0], base[1:, 0]),
        "epoch": (base[:, 0], keyed_uniforms(3, 8, indices, 0, 1)[:, 0]),
        "view": (base[:, 0], keyed_uniforms(3, 7, indices, 1, 1)[:, 0]),
        "seed": (base[:, 0], keyed_uniforms(4, 7, indices, 0, 1)[:, 0]),
    }
    for name, (one, other) in columns.items():
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(n), name
        cells = np.histogram2d(one, other, bins=8, range=((0, 1), (0, 1)))[0]
        expected = len(one) / 64
        # 63 degrees of freedom: exceeded once in ten thousand times.
        assert ((cells - expected) ** 2 / expected).sum() < 114, name


def test_no_draws_and_no_samples() -> None:
    assert keyed_uniforms(0, 0, np.arange(3), 0, 0).shape == (3, 0)
    assert keyed_uniforms(0, 0, np.arange(0), 0, 4).shape == (0, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, np.arange(2), 0, 1), "seed -1 is outside"),
        ((2**64, 0, np.arange(2), 0, 1), "seed 18446744073709551616 is outside"),
        ((0, 2**32, np.arange(2), 0, 1), "epoch 4294967296 is outside"),
        ((0, 0, np.arange(2), 65536, 1), "view 65536 is outside"),
        ((0, 0, np.array([-3]), 0, 1), "non-negative"),
        ((0, 0, np.zeros((2, 2), dtype=int), 0, 1), "1-D array"),
        ((0, 0, np.arange(2), 0, 2**18 + 1), "draws 0 to 262144 are outside"),
    ],
)
def test_keys_out_of_range_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        keyed_uniforms(*arguments)
