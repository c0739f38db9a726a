"""Views made for a batch at once, against torchvision; differences are in gray levels, 0 to 255.

On floats, color operations differ by rounding alone, and resizing and blurring by the order of
summation: at most 0.01 level each, and 0.1 for a whole view. On uint8, torchvision truncates the
result of every color operation (1 level), blends with a truncated gray value (another |1 - factor|
level), and rounds the weights and both passes of a resize (1.5 levels). A view of up to seven
operations, each of which can amplify earlier differences, stays within 2.5 levels on average and 16
at worst.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import InterpolationMode
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
from imsvd.views.batched import (
    JitterPlan,
    Resizing,
    blur_,
    blur_kernels,
    blur_matrices,
    crop_planes,
    jitter_,
    plan_jitter,
    resize_matrices,
    resizing,
    shift_hue_,
    solarize_,
    to_gray_,
)
from imsvd.views.parameters import BRIGHTNESS, CONTRAST, HUE, SATURATION
from imsvd.views.settings import blur_kernel_size
from tests.views.made_up import KINDS, Kind, make_images, make_parameters

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


COLOR_LEVELS = 0.01
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


def jitter(planes: Tensor, plan: JitterPlan) -> None:
    jitter_(planes, plan, torch.from_numpy(plan.blends), torch.from_numpy(plan.turns))


def jitter_one(image: Tensor, operation: int, factor: float) -> Tensor:
    """One operation of ours on one (3, height, width) image, the others left neutral."""
    name = OPERATIONS[operation][0]
    parameters = make_parameters(
        1, SIZE, SIZE, jitter=np.array([True]), **{name: np.array([factor])}
    )
    planes = to_planes(image[None])
    jitter(planes, plan_jitter(parameters))
    return planes[:, 0].view_as(image)


@hypothesis_settings(deadline=None, max_examples=150)
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
    assert (ours - floats).abs().max() <= COLOR_LEVELS
    bound = 1 if operation == BRIGHTNESS else 1 + abs(1 - factor)
    assert (ours - function(image, factor)).abs().max() <= bound + COLOR_LEVELS


@hypothesis_settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 99),
    st.floats(-0.5, 0.5) | st.sampled_from([-0.5, 0.0, 0.5, 1 / 3, 1e-7]),
)
def test_hue_equals_torchvision(kind: Kind, seed: int, turns: float) -> None:
    image = make_images(kind, 1, SIZE, SIZE, seed)[0]
    ours = jitter_one(image, HUE, turns)
    floats = on_floats(lambda pixels: F.adjust_hue(pixels, turns), image)
    assert (ours - floats).abs().max() <= COLOR_LEVELS
    assert (ours - F.adjust_hue(image, turns)).abs().max() <= 1 + COLOR_LEVELS


def test_hue_of_every_corner_of_the_color_cube_and_of_nearly_gray() -> None:
    levels = torch.tensor([0.0, 1e-5, 100.0, 100.0 + 1e-5, 127.5, 255.0])
    cube = torch.cartesian_prod(levels, levels, levels).T
    for turns in np.linspace(-0.5, 0.5, 25):
        planes = cube[:, None].clone()
        shift_hue_(planes, torch.full((1, 1), float(turns)))
        expected = F.adjust_hue(cube[:, None] / 255, float(turns)) * 255
        assert (planes - expected).abs().max() <= COLOR_LEVELS
        assert planes.min() >= 0
        assert planes.max() <= 255 + 1e-4


@hypothesis_settings(deadline=None, max_examples=40)
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
    jitter(planes, plan)
    for position, sample in enumerate(plan.permutation):
        expected = images[sample].to(torch.float32) / 255
        for operation in parameters.order[sample] if parameters.jitter[sample] else ():
            name, function = OPERATIONS[int(operation)]
            expected = function(expected, float(getattr(parameters, name)[sample]))
        ours = planes[:, position].view(3, SIZE, SIZE)
        assert (ours - expected * 255).abs().max() <= 5 * COLOR_LEVELS


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
            assert (gray[:, i].view(3, SIZE, SIZE) - floats).abs().max() <= COLOR_LEVELS


def test_without_jitter_nothing_changes() -> None:
    images = make_images("noise", 5, SIZE, SIZE)
    parameters = make_parameters(5, SIZE, SIZE, brightness=np.full(5, 0.1), hue=np.full(5, 0.3))
    plan = plan_jitter(parameters)
    planes = to_planes(images)
    jitter(planes, plan)
    assert plan.jittered == 0
    assert torch.equal(planes, to_planes(images))


RESAMPLING_LEVELS = 0.01
RESIZE_BYTE_LEVELS = 1.5
BLUR_BYTE_LEVELS = 0.51


def matrices_of(plan: Resizing, view: ViewSettings) -> Tensor:
    return resize_matrices(Resizing(*map(torch.from_numpy, plan)), view.interpolation)


def crop(images: Tensor, parameters: ViewParameters, view: ViewSettings) -> Tensor:
    height, width = images.shape[2:]
    flip = parameters.flip
    across = resizing(parameters.left, parameters.width, width, view.size, reverse=flip)
    down = resizing(parameters.top, parameters.height, height, view.size)
    matrices = matrices_of(across, view), matrices_of(down, view)
    return crop_planes(images, *matrices, view.interpolation)


def blurring(sigmas: list[float], size: int) -> Tensor:
    return blur_matrices(torch.from_numpy(blur_kernels(np.array(sigmas), size)), size)


def crop_both(
    images: Tensor, boxes: list[tuple[int, int, int, int]], flips: list[bool], view: ViewSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """(n, 3, size, size) crops: ours, torchvision's on floats, torchvision's on bytes."""
    top, left, height, width = np.array(boxes, dtype=np.int64).T
    parameters = make_parameters(
        len(images), 1, 1, top=top, left=left, height=height, width=width, flip=np.array(flips)
    )
    ours = crop(images, parameters, view).transpose(0, 1)
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


@hypothesis_settings(deadline=None, max_examples=120)
@given(crops())
def test_bilinear_crop_equals_torchvision(
    case: tuple[Tensor, list[tuple[int, int, int, int]], list[bool], int],
) -> None:
    images, boxes, flips, size = case
    ours, floats, levels = crop_both(images, boxes, flips, ViewSettings(size=size))
    assert (ours - floats).abs().max() <= RESAMPLING_LEVELS
    assert (ours - levels).abs().max() <= RESIZE_BYTE_LEVELS


@hypothesis_settings(deadline=None, max_examples=120)
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
        assert (ours - floats).abs().max() <= RESAMPLING_LEVELS


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_whole_image_at_its_own_size_is_untouched(interpolation: str) -> None:
    images = make_images("noise", 3, 32, 32)
    view = ViewSettings.model_validate({"size": 32, "interpolation": interpolation})
    ours = crop(images, make_parameters(3, 32, 32), view)
    assert torch.equal(ours.transpose(0, 1), images.to(torch.float32))


def test_pixels_outside_the_crop_never_contribute() -> None:
    view = ViewSettings(size=32, interpolation="bicubic")
    matrices = matrices_of(resizing(np.array([5]), np.array([7]), 20, 32), view)
    assert not matrices[:, :, :5].any()
    assert not matrices[:, :, 12:].any()
    torch.testing.assert_close(matrices.sum(dim=2), torch.ones(1, 32))


@hypothesis_settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([8, 17, 32, 45, 64, 96]),
    st.lists(st.floats(0.05, 5.0), min_size=1, max_size=4),
)
def test_blur_equals_torchvision(kind: Kind, size: int, sigmas: list[float]) -> None:
    images = make_images(kind, len(sigmas), size, size)
    planes = images.to(torch.float32).transpose(0, 1).contiguous()
    blur_(planes, torch.arange(len(sigmas)), blurring(sigmas, size))
    kernel = [blur_kernel_size(size)] * 2
    for ours, image, sigma in zip(planes.unbind(1), images, sigmas, strict=True):
        floats = F.gaussian_blur(image.to(torch.float32), kernel, [sigma, sigma])
        assert (ours - floats).abs().max() <= RESAMPLING_LEVELS
        levels = F.gaussian_blur(image, kernel, [sigma, sigma])
        assert (ours - levels).abs().max() <= BLUR_BYTE_LEVELS


def test_blur_leaves_other_samples_alone() -> None:
    planes = make_images("noise", 3, 16, 16).to(torch.float32).transpose(0, 1).contiguous()
    before = planes.clone()
    blur_(planes, torch.tensor([1]), blurring([1.0], 16))
    assert torch.equal(planes[:, [0, 2]], before[:, [0, 2]])
    assert not torch.equal(planes[:, 1], before[:, 1])


def test_blur_kernels_are_odd_tenths() -> None:
    assert [blur_kernel_size(size) for size in (8, 32, 64, 96, 224)] == [3, 3, 7, 9, 23]
