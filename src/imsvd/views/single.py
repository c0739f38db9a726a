"""Views of one image of any size, made with torchvision's functionals."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from imsvd.views.parameters import (
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    ViewParameters,
    sample_views,
)
from imsvd.views.settings import ViewSettings, ViewsSettings, blur_kernel_size

_SOLARIZE_THRESHOLD = 128
# Values that a CPU normalizes at a time, few enough to stay in its cache.
_CACHED = 2**18


def _jitter(image: Tensor, parameters: ViewParameters, i: int) -> Tensor:
    """Apply color jitter in the order of sample i to an image (3, size, size)."""
    for operation in parameters.order[i]:
        if operation == BRIGHTNESS:
            image = F.adjust_brightness(image, float(parameters.brightness[i]))
        elif operation == CONTRAST:
            image = F.adjust_contrast(image, float(parameters.contrast[i]))
        elif operation == SATURATION:
            image = F.adjust_saturation(image, float(parameters.saturation[i]))
        elif parameters.hue[i]:
            image = F.adjust_hue(image, float(parameters.hue[i]))
    return image


def make_view(image: Tensor, parameters: ViewParameters, i: int, settings: ViewSettings) -> Tensor:
    """Make one view of one image on uint8 values, as is usual with torchvision.

    Args:
        image: (3, height, width) uint8.
        parameters: of several samples.
        i: position of this image among them.
        settings: of the view.

    Returns:
        (3, size, size) float32, normalized.
    """
    return normalize(make_levels(image, parameters, i, settings)[None], settings)[0]


def make_levels(
    image: Tensor, parameters: ViewParameters, i: int, settings: ViewSettings
) -> Tensor:
    """Make one view without normalizing it: (3, size, size) uint8; see `make_view`."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(
            f"image must be uint8 of shape (3, height, width), not {image.dtype} of shape "
            f"{tuple(image.shape)}"
        )
    box = (int(side[i]) for side in parameters[:4])
    mode = InterpolationMode(settings.interpolation)
    view: Tensor = F.resized_crop(
        image, *box, [settings.size, settings.size], interpolation=mode, antialias=True
    )
    if parameters.flip[i]:
        view = F.horizontal_flip(view)
    if parameters.jitter[i]:
        view = _jitter(view, parameters, i)
    if parameters.gray[i]:
        view = F.rgb_to_grayscale(view, num_output_channels=3)
    if parameters.blur[i]:
        kernel_size = blur_kernel_size(settings.size)
        view = F.gaussian_blur(view, [kernel_size] * 2, [float(parameters.blur_sigma[i])] * 2)
    if parameters.solarize[i]:
        view = F.solarize(view, _SOLARIZE_THRESHOLD)
    return view


def image_views(
    image: Tensor, settings: ViewsSettings, *, seed: int, epoch: int, index: int
) -> list[Tensor]:
    """Make every view of one image: one (3, size, size) float32 tensor per view.

    Args:
        image: (3, height, width) uint8.
        settings: of all views.
        seed: of the run.
        epoch: of the run.
        index: position in the dataset, which keys the randomness.
    """
    height, width, indices = (np.array([value]) for value in (*image.shape[1:], index))
    drawn = sample_views(settings, height, width, seed=seed, epoch=epoch, indices=indices)
    pairs = zip(drawn, settings.every, strict=True)
    return [make_view(image, parameters, 0, view) for parameters, view in pairs]


def normalize(levels: Tensor, settings: ViewSettings) -> Tensor:
    """Return (x / 255 - mean) / std for every channel.

    Views stay uint8 until their batch is complete, which takes a quarter of the memory to fill, to
    pass between processes and to copy to a GPU; then the whole batch is normalized at once.

    Args:
        levels: (n, 3, size, size) uint8 in channels_last memory format, on any device.
        settings: of the view.

    Returns:
        float32 of the same shape, format and device.
    """
    count, channels, height, width = levels.shape
    scale, shift = _scale_and_shift(settings.mean, settings.std, width, levels.device)
    rows = levels.permute(0, 2, 3, 1).reshape(count, height, width * channels)
    normalized = torch.empty(rows.shape, dtype=torch.float32, device=levels.device)
    on_processor = levels.device.type == "cpu"
    step = max(1, _CACHED // (height * width * channels) if on_processor else count)
    for source, target in zip(torch.split(rows, step), torch.split(normalized, step), strict=True):
        torch.addcmul(shift, target.copy_(source), scale, out=target)
    return normalized.view(count, height, width, channels).permute(0, 3, 1, 2)


@lru_cache(maxsize=32)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return factors and offsets for a row of pixels, (3 * width,) each; rows are fast, triples slow."""
    means, stds = torch.tensor(mean), torch.tensor(std)
    scale, shift = 1 / (255.0 * stds), -means / stds
    return scale.repeat(width).to(device), shift.repeat(width).to(device)
