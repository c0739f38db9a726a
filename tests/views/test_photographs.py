from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from imsvd.views import ViewSettings, make_levels, paper_views, sample_parameters
from tests.views.made_up import KINDS, Kind, make_images, make_parameters

pytest.importorskip("cv2")

from imsvd.views import photographs
from imsvd.views.photographs import make_photograph_view

SIZE = 64
FACTORS = (0.0, 0.6, 0.93, 1.0, 1.2, 1.4, 1.9)


def pixels(image: Tensor) -> npt.NDArray[np.uint8]:
    """(height, width, 3) from (3, height, width), as decoders give it."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def difference(view: npt.NDArray[Any], expected: Tensor) -> npt.NDArray[np.float64]:
    """Absolute difference in levels."""
    found: npt.NDArray[np.float64] = view - expected.permute(1, 2, 0).numpy().astype(np.float64)
    return np.abs(found)


def jittered(image: Tensor, /, *order: int, **changes: float) -> Any:
    parameters = make_parameters(
        1,
        SIZE,
        SIZE,
        order=np.array([order or range(4)]),
        **{name: np.array([value]) for name, value in changes.items()},
    )
    return photographs.jitter(pixels(image), parameters, 0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "box",
    [(0, 0, 300, 200), (20, 30, 160, 120), (5, 5, 40, 190), (7, 8, 50, 64), (299, 199, 1, 1)],
)
def test_crop_equals_torchvision(box: tuple[int, int, int, int], interpolation: Any) -> None:
    image = make_images("noise", 1, 300, 200)[0]
    settings = ViewSettings(size=SIZE, interpolation=interpolation)
    expected = F.resized_crop(
        image, *box, [SIZE, SIZE], interpolation=InterpolationMode(interpolation), antialias=True
    )
    view = photographs.crop_view(pixels(image), box, settings)
    assert difference(view, expected).max() <= 1
    assert view.flags.c_contiguous


@pytest.mark.parametrize("turned", [np.flipud, np.fliplr, lambda image: image.swapaxes(0, 1)])
def test_crop_of_a_picture_turned_without_copying(turned: Any) -> None:
    image = turned(pixels(make_images("noise", 1, 300, 200)[0]))
    settings = ViewSettings(size=SIZE)
    expected = photographs.crop_view(image.copy(), (20, 30, 160, 120), settings)
    view = photographs.crop_view(image, (20, 30, 160, 120), settings)
    np.testing.assert_array_equal(view, expected)
    assert view.flags.c_contiguous


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    ("name", "adjust"),
    [
        ("brightness", F.adjust_brightness),
        ("contrast", F.adjust_contrast),
        ("saturation", F.adjust_saturation),
    ],
)
def test_blends_are_within_a_level_of_torchvision(
    name: str, adjust: Callable[..., Tensor], factor: float, kind: Kind
) -> None:
    image = make_images(kind, 1, SIZE, SIZE)[0]
    view = jittered(image, **{name: factor})
    assert difference(view, adjust(image, factor)).max() <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turns", [-0.5, -0.1, -0.003, 0.0, 0.05, 0.1, 0.37, 0.5])
def test_hue_is_within_a_level_of_torchvision(turns: float, kind: Kind) -> None:
    image = make_images(kind, 1, SIZE, SIZE)[0]
    assert difference(jittered(image, hue=turns), F.adjust_hue(image, turns)).max() <= 1


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)])
@pytest.mark.parametrize("factors", [(0.7, 0.8, 0.9), (0.7, 1.3, 0.9), (1.4, 1.4, 1.2)])
def test_jitter_in_any_order_is_within_levels_of_torchvision(
    factors: tuple[float, float, float], order: tuple[int, ...]
) -> None:
    brightness, contrast, saturation = factors
    image = make_images("noise", 1, SIZE, SIZE)[0]
    view = jittered(
        image, *order, brightness=brightness, contrast=contrast, saturation=saturation, hue=0.08
    )
    steps: list[Callable[[Tensor], Tensor]] = [
        lambda x: F.adjust_brightness(x, brightness),
        lambda x: F.adjust_contrast(x, contrast),
        lambda x: F.adjust_saturation(x, saturation),
        lambda x: F.adjust_hue(x, 0.08),
    ]
    expected = image
    for operation in order:
        expected = steps[operation](expected)
    # Every operation may differ by a level, which those after it enlarge.
    found = difference(view, expected)
    assert found.max() <= 8
    assert found.mean() <= 0.6


@pytest.mark.parametrize("kind", ["noise", "smooth", "white"])
@pytest.mark.parametrize("sigma", [0.1, 0.26, 0.28, 0.5, 1.0, 1.4, 2.0])
def test_blur_is_within_a_level_of_torchvision(sigma: float, kind: Kind) -> None:
    image = make_images(kind, 1, 224, 224)[0]
    expected = F.gaussian_blur(image, [23, 23], [sigma, sigma])
    assert difference(photographs.blur_view(pixels(image), sigma), expected).max() <= 1


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_blur_of_a_small_view_uses_its_small_kernel(sigma: float) -> None:
    image = make_images("noise", 1, 32, 32)[0]
    expected = F.gaussian_blur(image, [3, 3], [sigma, sigma])
    assert difference(photographs.blur_view(pixels(image), sigma), expected).max() <= 1


def test_solarize_equals_torchvision_on_every_level() -> None:
    image = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(3, 1, 1)
    assert not difference(photographs.solarize(pixels(image)), F.solarize(image, 128)).any()


def test_without_operations_a_view_is_the_image() -> None:
    settings = ViewSettings(size=SIZE)
    image = make_images("noise", 1, SIZE, SIZE)[0]
    parameters = make_parameters(1, SIZE, SIZE)
    view = make_photograph_view(pixels(image), parameters, 0, settings)
    assert view.dtype == np.uint8
    assert np.array_equal(view, pixels(image))


@pytest.mark.parametrize("kind", ["noise", "smooth", "gray"])
def test_whole_views_are_within_levels_of_the_general_path(kind: Kind) -> None:
    image = make_images(kind, 1, 300, 260)[0]
    before = image.clone()
    count = 60
    for number, settings in enumerate(paper_views(SIZE).views):
        parameters = sample_parameters(
            settings,
            np.full(count, 300),
            np.full(count, 260),
            seed=3,
            epoch=1,
            indices=np.arange(count),
            view=number,
        )
        for i in range(count):
            view = make_photograph_view(pixels(image), parameters, i, settings)
            assert view.shape == (SIZE, SIZE, 3)
            levels = difference(view, make_levels(image, parameters, i, settings))
            assert levels.max() <= 8
            # torchvision's luma loses up to a level of what is gray already.
            assert levels.mean() <= (3 if kind == "gray" else 1)
    assert torch.equal(image, before)


def test_a_reduced_image_is_cropped_between_its_pixels() -> None:
    ramp = np.broadcast_to(np.arange(128, dtype=np.uint8)[:, None], (128, 128))
    image = np.repeat(ramp[..., None], 3, axis=2)
    # As if decoded from 256 pixels, in which neighbors are half a level apart.
    view = photographs.crop_view(image, (101, 60, 64, 64), ViewSettings(size=64), reduction=2)
    expected = (101 + np.arange(64) + 0.5) / 2 - 0.5
    assert np.abs(view[1:-1, :, 0] - expected[1:-1, None]).max() <= 0.5
