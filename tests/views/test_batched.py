"""Whole views, made for a batch at once; differences are in gray levels, 0 to 255.

Against torchvision's operations on floats, which round as little as ours do, a whole view agrees
within 0.1 level. On bytes each of up to seven operations loses up to a level, which later
operations can multiply: on average at most 2.5 levels, at worst 16.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from imsvd.views import (
    ViewParameters,
    ViewSettings,
    batch_views,
    cifar_views,
    image_views,
    make_view,
    make_views_batched,
    paper_views,
    sample_parameters,
)
from imsvd.views import batched as batched_module
from imsvd.views.resampling import blur_kernel_size
from tests.views.samples import KINDS, Kind, make_images, make_parameters

FLOAT_LEVELS = 0.1
BYTE_LEVELS_MEAN = 2.5
BYTE_LEVELS_MAX = 16
BUSY = ViewSettings(
    size=32, crop_scale=(0.1, 1.0), saturation=0.4, blur_probability=0.5, solarize_probability=0.3
)
SETTINGS = {
    "cifar": cifar_views().views[0],
    "paper, first": paper_views(32).views[0],
    "paper, second": paper_views(32).views[1],
    "busy": BUSY,
}


def draw(settings: ViewSettings, images: Tensor, seed: int = 0) -> ViewParameters:
    count, _, height, width = images.shape
    sizes = np.full(count, height), np.full(count, width)
    return sample_parameters(settings, *sizes, seed=seed, epoch=0, indices=np.arange(count), view=0)


def in_levels(views: Tensor, settings: ViewSettings) -> Tensor:
    mean, std = (
        torch.tensor(channels)[:, None, None] for channels in (settings.mean, settings.std)
    )
    return (views * std + mean) * 255


def float_view(image: Tensor, p: ViewParameters, i: int, settings: ViewSettings) -> Tensor:
    """The view of a (3, height, width) image by torchvision's operations on floats, in levels."""
    box = (int(side[i]) for side in p[:4])
    view = F.resized_crop(image.to(torch.float32) / 255, *box, [settings.size] * 2, antialias=True)
    view = F.horizontal_flip(view) if p.flip[i] else view
    functions = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    factors = (p.brightness, p.contrast, p.saturation, p.hue)
    for operation in p.order[i] if p.jitter[i] else ():
        view = functions[operation](view, float(factors[operation][i]))
    view = F.rgb_to_grayscale(view, 3) if p.gray[i] else view
    if p.blur[i]:
        view = F.gaussian_blur(
            view, [blur_kernel_size(settings.size)] * 2, [float(p.blur_sigma[i])] * 2
        )
    view = F.solarize(view, 0.5) if p.solarize[i] else view
    levels: Tensor = view * 255
    return levels


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_views_equal_torchvisions_on_floats_and_on_bytes(name: str, kind: Kind) -> None:
    settings = SETTINGS[name]
    images = make_images(kind, 48, 32, 32)
    parameters = draw(settings, images)
    ours = in_levels(make_views_batched(images, parameters, settings), settings)
    floats = [float_view(image, parameters, i, settings) for i, image in enumerate(images)]
    assert (ours - torch.stack(floats)).abs().max() <= FLOAT_LEVELS
    levels = [make_view(image, parameters, i, settings) for i, image in enumerate(images)]
    difference = (ours - in_levels(torch.stack(levels), settings)).abs()
    assert difference.mean() <= BYTE_LEVELS_MEAN
    assert difference.max() <= BYTE_LEVELS_MAX


@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, 48), (96, 96, 64), (20, 71, 33), (8, 8, 8), (1, 1, 16)]
)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_any_size_in_and_out(height: int, width: int, size: int, interpolation: str) -> None:
    settings = BUSY.model_copy(update={"size": size, "interpolation": interpolation})
    images = make_images("smooth", 24, height, width)
    parameters = draw(settings, images)
    views = make_views_batched(images, parameters, settings)
    assert views.shape == (24, 3, size, size)
    assert views.dtype == torch.float32
    assert views.is_contiguous(memory_format=torch.channels_last)
    levels = [make_view(image, parameters, i, settings) for i, image in enumerate(images)]
    difference = (in_levels(views, settings) - in_levels(torch.stack(levels), settings)).abs()
    assert difference.mean() <= BYTE_LEVELS_MEAN
    assert difference.max() <= BYTE_LEVELS_MAX


def test_without_operations_a_view_is_the_normalized_image() -> None:
    settings = ViewSettings(size=32)
    images = make_images("noise", 6, 32, 32)
    views = make_views_batched(images, make_parameters(6, 32, 32), settings)
    expected = F.normalize(images.to(torch.float32) / 255, list(settings.mean), list(settings.std))
    torch.testing.assert_close(views, expected, rtol=0, atol=1e-6, check_stride=False)


@pytest.mark.parametrize("factor", [0.0, 1e-3, 50.0])
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_factors_stay_finite_and_in_range(kind: Kind, factor: float) -> None:
    factors = np.full(24, factor)
    images = make_images(kind, 24, 32, 32)
    parameters = draw(BUSY, images)._replace(
        jitter=np.ones(24, dtype=bool), brightness=factors, contrast=factors, saturation=factors
    )
    levels = in_levels(make_views_batched(images, parameters, BUSY), BUSY)
    assert levels.isfinite().all()
    assert levels.min() >= -0.01
    assert levels.max() <= 255.01


@pytest.mark.parametrize(("height", "size"), [(32, 32), (37, 33), (96, 64)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_view_does_not_depend_on_its_batch_mates(
    height: int, size: int, interpolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BUSY.model_copy(update={"size": size, "interpolation": interpolation})
    images = make_images("noise", 64, height, height)
    parameters = draw(settings, images)
    together = make_views_batched(images, parameters, settings)
    alone = [
        make_views_batched(images[i : i + 1], parameters.select(slice(i, i + 1)), settings)
        for i in range(64)
    ]
    assert torch.equal(torch.cat(alone), together)
    rows = np.random.default_rng(0).permutation(64)
    shuffled = make_views_batched(images[torch.from_numpy(rows)], parameters.select(rows), settings)
    assert torch.equal(shuffled, together[torch.from_numpy(rows)])
    monkeypatch.setattr(batched_module, "_BLOCK_PIXELS", 7 * max(height, size) ** 2)
    assert torch.equal(make_views_batched(images, parameters, settings), together)


def test_views_follow_the_key_and_nothing_else() -> None:
    images, views = make_images("noise", 16, 32, 32), cifar_views()
    indices = np.arange(100, 116)
    first, second = batch_views(images, views, seed=3, epoch=5, indices=indices)
    again = batch_views(images[4:9], views, seed=3, epoch=5, indices=indices[4:9])
    assert torch.equal(again[0], first[4:9])
    assert torch.equal(again[1], second[4:9])
    for other in (
        second,
        batch_views(images, views, seed=3, epoch=6, indices=indices)[0],
        batch_views(images, views, seed=4, epoch=5, indices=indices)[0],
        batch_views(images, views, seed=3, epoch=5, indices=indices + 1)[0],
    ):
        assert (first != other).flatten(1).any(dim=1).all()


def test_one_image_and_a_batch_draw_the_same_views() -> None:
    images, views = make_images("smooth", 8, 40, 36), paper_views(32)
    batched = batch_views(images, views, seed=1, epoch=2, indices=np.arange(8))
    for i, image in enumerate(images):
        single = image_views(image, views, seed=1, epoch=2, index=i)
        for one, many, settings in zip(single, batched, views.views, strict=True):
            difference = (in_levels(one, settings) - in_levels(many[i], settings)).abs()
            assert difference.mean() <= BYTE_LEVELS_MEAN


def test_the_images_given_are_not_changed() -> None:
    images = make_images("noise", 8, 32, 32)
    before = images.clone()
    batch_views(images, paper_views(32), seed=0, epoch=0, indices=np.arange(8))
    assert torch.equal(images, before)


def test_neither_autocast_nor_the_number_of_threads_changes_a_view() -> None:
    images = make_images("noise", 64, 32, 32)
    plain = make_views_batched(images, draw(BUSY, images), BUSY)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(make_views_batched(images, draw(BUSY, images), BUSY), plain)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert torch.equal(make_views_batched(images, draw(BUSY, images), BUSY), plain)
    finally:
        torch.set_num_threads(threads)


def test_an_empty_batch_and_a_view_of_a_larger_tensor() -> None:
    images = make_images("noise", 8, 32, 32)
    assert make_views_batched(images[:0], draw(BUSY, images[:0]), BUSY).shape == (0, 3, 32, 32)
    parameters = draw(BUSY, images[:, :, 4:28, 4:28])
    strided = make_views_batched(images[:, :, 4:28, 4:28], parameters, BUSY)
    copied = make_views_batched(images[:, :, 4:28, 4:28].contiguous(), parameters, BUSY)
    assert torch.equal(strided, copied)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 8, 8), "torch.float32 of shape"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"\(3, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), r"\(2, 1, 8, 8\)"),
    ],
)
def test_other_tensors_are_refused(images: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_views_batched(images, make_parameters(2, 8, 8), ViewSettings(size=8))
