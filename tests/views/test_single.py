import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from imsvd.views import ViewSettings, image_views, make_view, normalize, paper_views
from tests.views.made_up import make_images, make_parameters


def test_without_operations_a_view_is_the_normalized_image() -> None:
    settings = ViewSettings(size=32)
    image = make_images("noise", 1, 32, 32)[0]
    view = make_view(image, make_parameters(1, 32, 32), 0, settings)
    expected = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(settings.mean, settings.std)]
    )(image)
    torch.testing.assert_close(view, expected, rtol=0, atol=1e-6)


def test_operations_come_in_the_papers_order() -> None:
    image = make_images("smooth", 1, 300, 200)[0]
    yes = np.array([True])
    parameters = make_parameters(
        1,
        300,
        200,
        top=np.array([20]),
        left=np.array([30]),
        height=np.array([160]),
        width=np.array([120]),
        flip=yes,
        jitter=yes,
        order=np.array([[3, 1, 0, 2]]),
        brightness=np.array([1.3]),
        contrast=np.array([0.7]),
        saturation=np.array([1.2]),
        hue=np.array([-0.08]),
        gray=yes,
        blur=yes,
        blur_sigma=np.array([1.7]),
        solarize=yes,
    )
    view = make_view(image, parameters, 0, ViewSettings(size=224))
    expected = F.horizontal_flip(F.resized_crop(image, 20, 30, 160, 120, [224, 224]))
    expected = F.adjust_contrast(F.adjust_hue(expected, -0.08), 0.7)
    expected = F.adjust_saturation(F.adjust_brightness(expected, 1.3), 1.2)
    expected = F.gaussian_blur(F.rgb_to_grayscale(expected, 3), [23, 23], [1.7, 1.7])
    expected = F.to_dtype(F.solarize(expected, 128), torch.float32, scale=True)
    expected = F.normalize(expected, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(view, expected, rtol=0, atol=1e-6)


def test_two_views_of_any_image_size() -> None:
    for height, width in ((1, 1), (7, 300), (500, 375)):
        image = make_images("smooth", 1, height, width)[0]
        before = image.clone()
        first, second = image_views(image, paper_views(), seed=0, epoch=0, index=9)
        assert first.shape == second.shape == (3, 224, 224)
        assert first.isfinite().all()
        assert second.isfinite().all()
        assert torch.equal(image, before)


def test_views_follow_the_key() -> None:
    image = make_images("smooth", 1, 60, 80)[0]
    views = paper_views(64)
    first = image_views(image, views, seed=0, epoch=0, index=9)
    again = image_views(image, views, seed=0, epoch=0, index=9)
    other = image_views(image, views, seed=0, epoch=1, index=9)
    for one, same, different in zip(first, again, other, strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, different)
    assert not torch.equal(first[0], first[1])


def test_other_tensors_are_refused() -> None:
    parameters, settings = make_parameters(1, 8, 8), ViewSettings(size=8)
    with pytest.raises(ValueError, match=r"torch.float32 of shape \(3, 8, 8\)"):
        make_view(torch.zeros(3, 8, 8), parameters, 0, settings)
    with pytest.raises(ValueError, match=r"torch.uint8 of shape \(1, 8, 8\)"):
        make_view(torch.zeros(1, 8, 8, dtype=torch.uint8), parameters, 0, settings)


@given(
    count=st.integers(1, 3),
    size=st.integers(1, 9),
    mean=st.tuples(*[st.floats(-1, 1)] * 3),
    std=st.tuples(*[st.floats(0.05, 2)] * 3),
)
def test_every_byte_is_scaled_shifted_and_divided(
    count: int, size: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    settings = ViewSettings(size=8, mean=mean, std=std)
    generator = torch.Generator().manual_seed(size)
    levels = torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    found = normalize(levels, settings)
    for channel in range(3):
        expected = (levels[:, channel].double() / 255 - mean[channel]) / std[channel]
        error = (found[:, channel].double() - expected).abs().max()
        # Both terms are rounded before one is taken from the other.
        assert error <= 3e-7 * (1 + abs(mean[channel])) / std[channel]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_result_is_laid_out_for_convolutions(memory_format: torch.memory_format) -> None:
    levels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    before = levels.clone()
    found = normalize(levels.contiguous(memory_format=memory_format), ViewSettings(size=8))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.dtype == torch.float32
    assert torch.equal(levels, before)
