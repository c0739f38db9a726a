"""Each color operation equals torchvision's; differences are in gray levels, 0 to 255.

On floats only rounding differs: at most 0.01 level. On bytes torchvision cuts every result down to
a whole level (at most 1 level), and contrast and saturation blend with a gray that was cut down as
well (another |1 - factor| level).
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from imsvd.views.color import jitter_, plan_jitter, shift_hue_, solarize_, to_gray_
from imsvd.views.parameters import BRIGHTNESS, CONTRAST, HUE, SATURATION
from tests.views.samples import KINDS, Kind, make_images, make_parameters

FLOAT_LEVELS = 0.01
SIZE = 13
OPERATIONS = {
    BRIGHTNESS: ("brightness", F.adjust_brightness),
    CONTRAST: ("contrast", F.adjust_contrast),
    SATURATION: ("saturation", F.adjust_saturation),
    HUE: ("hue", F.adjust_hue),
}


def to_planes(images: Tensor) -> Tensor:
    """(n, 3, height, width) bytes to (3, n, pixels) floats."""
    return images.to(torch.float32).flatten(2).transpose(0, 1).contiguous()


def on_floats(function: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    """torchvision's operation on a float image, in levels."""
    return function(image.to(torch.float32) / 255) * 255


def jitter_one(image: Tensor, operation: int, factor: float) -> Tensor:
    """One operation of ours on one (3, height, width) image, the others left neutral."""
    name = OPERATIONS[operation][0]
    parameters = make_parameters(
        1, SIZE, SIZE, jitter=np.array([True]), **{name: np.array([factor])}
    )
    planes = to_planes(image[None])
    jitter_(planes, plan_jitter(parameters))
    return planes[:, 0].view_as(image)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 99),
    st.sampled_from([BRIGHTNESS, CONTRAST, SATURATION]),
    st.floats(0, 3) | st.sampled_from([0.0, 1.0, 0.6, 1.4, 100.0]),
)
def test_blends_equal_torchvision(kind: Kind, seed: int, operation: int, factor: float) -> None:
    image = make_images(kind, 1, SIZE, SIZE, seed)[0]
    ours = jitter_one(image, operation, factor)
    function = OPERATIONS[operation][1]
    floats = on_floats(lambda pixels: function(pixels, factor), image)
    assert (ours - floats).abs().max() <= FLOAT_LEVELS
    bound = 1 if operation == BRIGHTNESS else 1 + abs(1 - factor)
    assert (ours - function(image, factor)).abs().max() <= bound + FLOAT_LEVELS


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 99),
    st.floats(-0.5, 0.5) | st.sampled_from([-0.5, 0.0, 0.5, 1 / 3, 1e-7]),
)
def test_hue_equals_torchvision(kind: Kind, seed: int, turns: float) -> None:
    image = make_images(kind, 1, SIZE, SIZE, seed)[0]
    ours = jitter_one(image, HUE, turns)
    floats = on_floats(lambda pixels: F.adjust_hue(pixels, turns), image)
    assert (ours - floats).abs().max() <= FLOAT_LEVELS
    assert (ours - F.adjust_hue(image, turns)).abs().max() <= 1 + FLOAT_LEVELS


def test_hue_of_every_corner_of_the_color_cube_and_of_nearly_gray() -> None:
    levels = torch.tensor([0.0, 1e-5, 100.0, 100.0 + 1e-5, 127.5, 255.0])
    cube = torch.cartesian_prod(levels, levels, levels).T
    for turns in np.linspace(-0.5, 0.5, 25):
        planes = cube[:, None].clone()
        shift_hue_(planes, torch.full((1, 1), float(turns)))
        expected = F.adjust_hue(cube[:, None] / 255, float(turns)) * 255
        assert (planes - expected).abs().max() <= FLOAT_LEVELS
        assert planes.min() >= 0
        assert planes.max() <= 255 + 1e-4


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 9999), st.integers(1, 40), st.sampled_from(KINDS))
def test_jitter_in_random_order_equals_torchvision(seed: int, count: int, kind: Kind) -> None:
    random = np.random.default_rng(seed)
    images = make_images(kind, count, SIZE, SIZE, seed)
    parameters = make_parameters(
        count,
        SIZE,
        SIZE,
        jitter=random.random(count) < 0.8,
        order=np.argsort(random.random((count, 4)), axis=1),
        brightness=random.uniform(0, 2, count),
        contrast=random.uniform(0, 2, count),
        saturation=random.uniform(0, 2, count),
        hue=random.uniform(-0.5, 0.5, count),
    )
    plan = plan_jitter(parameters)
    planes = to_planes(images[torch.from_numpy(plan.permutation)])
    jitter_(planes, plan)
    for position, sample in enumerate(plan.permutation):
        expected = images[sample].to(torch.float32) / 255
        for operation in parameters.order[sample] if parameters.jitter[sample] else ():
            name, function = OPERATIONS[int(operation)]
            expected = function(expected, float(getattr(parameters, name)[sample]))
        ours = planes[:, position].view(3, SIZE, SIZE)
        assert (ours - expected * 255).abs().max() <= 5 * FLOAT_LEVELS


@pytest.mark.parametrize("kind", KINDS)
def test_gray_and_solarize_equal_torchvision(kind: Kind) -> None:
    images = make_images(kind, 4, SIZE, SIZE)
    rows = torch.tensor([1, 3])
    gray, solarized = to_planes(images), to_planes(images)
    to_gray_(gray, rows)
    solarize_(solarized, rows)
    for i, image in enumerate(images):
        chosen = i in rows
        expected = F.rgb_to_grayscale(image, 3) if chosen else image
        assert (gray[:, i].view(3, SIZE, SIZE) - expected).abs().max() < 1
        expected = F.solarize(image, 128) if chosen else image
        assert torch.equal(solarized[:, i].view(3, SIZE, SIZE), expected.to(torch.float32))
        if chosen:
            floats = on_floats(lambda pixels: F.rgb_to_grayscale(pixels, 3), image)
            assert (gray[:, i].view(3, SIZE, SIZE) - floats).abs().max() <= FLOAT_LEVELS


def test_without_jitter_nothing_changes() -> None:
    images = make_images("noise", 5, SIZE, SIZE)
    parameters = make_parameters(5, SIZE, SIZE, brightness=np.full(5, 0.1), hue=np.full(5, 0.3))
    plan = plan_jitter(parameters)
    planes = to_planes(images)
    jitter_(planes, plan)
    assert plan.jittered == 0
    assert torch.equal(planes, to_planes(images))
