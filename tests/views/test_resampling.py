"""Resizing and blurring equal torchvision's; differences are in gray levels, 0 to 255.

On floats only the order of summation differs: at most 0.01 level. On bytes torchvision also rounds
after each of the two passes of a resize and rounds the filter's weights: at most 1.5 levels.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from imsvd.views import ViewSettings
from imsvd.views.batched import blur_, crop_planes
from imsvd.views.resampling import blur_kernel_size, blur_matrices, resize_matrices
from tests.views.samples import KINDS, Kind, make_images, make_parameters

FLOAT_LEVELS = 0.01
RESIZE_BYTE_LEVELS = 1.5
BLUR_BYTE_LEVELS = 0.51
CPU = torch.device("cpu")


def crop_both(
    images: Tensor, boxes: list[tuple[int, int, int, int]], flips: list[bool], view: ViewSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """(n, 3, size, size) crops: ours, torchvision's on floats, torchvision's on bytes."""
    top, left, height, width = np.array(boxes, dtype=np.int64).T
    parameters = make_parameters(
        len(images), 1, 1, top=top, left=left, height=height, width=width, flip=np.array(flips)
    )
    ours = crop_planes(images, parameters, view).transpose(0, 1)
    mode = InterpolationMode(view.interpolation)
    results = []
    for source in (images.to(torch.float32), images):
        crops = [
            F.resized_crop(image, *box, [view.size] * 2, interpolation=mode, antialias=True)
            for image, box in zip(source, boxes, strict=True)
        ]
        flipped = [F.horizontal_flip(c) if f else c for c, f in zip(crops, flips, strict=True)]
        results.append(torch.stack(flipped).to(torch.float32).clamp(0, 255))
    return ours, results[0], results[1]


@st.composite
def crops(draw: st.DrawFn) -> tuple[Tensor, list[tuple[int, int, int, int]], list[bool], int]:
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    count = draw(st.integers(1, 4))
    images = make_images(
        draw(st.sampled_from(KINDS)), count, height, width, draw(st.integers(0, 9))
    )
    boxes = []
    for _ in range(count):
        crop_height, crop_width = draw(st.integers(1, height)), draw(st.integers(1, width))
        top = draw(st.integers(0, height - crop_height))
        left = draw(st.integers(0, width - crop_width))
        boxes.append((top, left, crop_height, crop_width))
    flips = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return images, boxes, flips, draw(st.integers(8, 70))


@settings(deadline=None, max_examples=120)
@given(crops())
def test_bilinear_crop_equals_torchvision(
    case: tuple[Tensor, list[tuple[int, int, int, int]], list[bool], int],
) -> None:
    images, boxes, flips, size = case
    ours, floats, levels = crop_both(images, boxes, flips, ViewSettings(size=size))
    assert (ours - floats).abs().max() <= FLOAT_LEVELS
    assert (ours - levels).abs().max() <= RESIZE_BYTE_LEVELS


@settings(deadline=None, max_examples=120)
@given(crops())
def test_bicubic_crop_equals_torchvision_on_bytes(
    case: tuple[Tensor, list[tuple[int, int, int, int]], list[bool], int],
) -> None:
    images, boxes, flips, size = case
    view = ViewSettings(size=size, interpolation="bicubic")
    ours, _, levels = crop_both(images, boxes, flips, view)
    assert (ours - levels).abs().max() <= RESIZE_BYTE_LEVELS


def test_bicubic_crop_equals_torchvision_on_floats_where_nothing_is_clamped() -> None:
    images = make_images("smooth", 4, 40, 40) // 2 + 64
    boxes = [(0, 0, 40, 40), (3, 5, 20, 31), (10, 0, 7, 9), (39, 39, 1, 1)]
    for size in (16, 32, 50):
        view = ViewSettings(size=size, interpolation="bicubic")
        ours, floats, _ = crop_both(images, boxes, [False, True, False, True], view)
        assert (ours - floats).abs().max() <= FLOAT_LEVELS


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_whole_image_at_its_own_size_is_untouched(interpolation: str) -> None:
    images = make_images("noise", 3, 32, 32)
    view = ViewSettings.model_validate({"size": 32, "interpolation": interpolation})
    ours = crop_planes(images, make_parameters(3, 32, 32), view)
    assert torch.equal(ours.transpose(0, 1), images.to(torch.float32))


def test_pixels_outside_the_crop_never_contribute() -> None:
    matrices = resize_matrices(np.array([5]), np.array([7]), 20, 32, "bicubic", CPU)
    assert not matrices[:, :, :5].any()
    assert not matrices[:, :, 12:].any()
    torch.testing.assert_close(matrices.sum(dim=2), torch.ones(1, 32))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([8, 17, 32, 45, 64, 96]),
    st.lists(st.floats(0.05, 5.0), min_size=1, max_size=4),
)
def test_blur_equals_torchvision(kind: Kind, size: int, sigmas: list[float]) -> None:
    images = make_images(kind, len(sigmas), size, size)
    planes = images.to(torch.float32).transpose(0, 1).contiguous()
    blur_(planes, torch.arange(len(sigmas)), blur_matrices(np.array(sigmas), size, CPU))
    kernel = [blur_kernel_size(size)] * 2
    for ours, image, sigma in zip(planes.unbind(1), images, sigmas, strict=True):
        floats = F.gaussian_blur(image.to(torch.float32), kernel, [sigma, sigma])
        assert (ours - floats).abs().max() <= FLOAT_LEVELS
        levels = F.gaussian_blur(image, kernel, [sigma, sigma])
        assert (ours - levels).abs().max() <= BLUR_BYTE_LEVELS


def test_blur_leaves_other_samples_alone() -> None:
    planes = make_images("noise", 3, 16, 16).to(torch.float32).transpose(0, 1).contiguous()
    before = planes.clone()
    blur_(planes, torch.tensor([1]), blur_matrices(np.array([1.0]), 16, CPU))
    assert torch.equal(planes[:, [0, 2]], before[:, [0, 2]])
    assert not torch.equal(planes[:, 1], before[:, 1])


def test_blur_kernels_are_odd_tenths() -> None:
    assert [blur_kernel_size(size) for size in (8, 32, 64, 96, 224)] == [3, 3, 7, 9, 23]
