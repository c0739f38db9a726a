"""Views of one image of any size, on torchvision's own functionals."""

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from imsvd.views.levels import normalize
from imsvd.views.parameters import (
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    ViewParameters,
    sample_parameters,
)
from imsvd.views.resampling import blur_kernel_size
from imsvd.views.settings import ViewSettings, ViewsSettings

_SOLARIZE_THRESHOLD = 128


def _jitter(image: Tensor, parameters: ViewParameters, i: int) -> Tensor:
    """Brightness, contrast, saturation and hue in sample i's order; image is (3, size, size)."""
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
    """One view of one image, computed on bytes as torchvision users do.

    Args:
        image: (3, height, width) uint8.
        parameters: of several samples.
        i: which of them this image is.
        settings: of the view.

    Returns:
        (3, size, size) float32, normalized.
    """
    return normalize(make_levels(image, parameters, i, settings)[None], settings)[0]


def make_levels(
    image: Tensor, parameters: ViewParameters, i: int, settings: ViewSettings
) -> Tensor:
    """`make_view` without the normalization: (3, size, size) uint8."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(
            f"image must be bytes of shape (3, height, width), not {image.dtype} of shape "
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
    """Every view of one image: a list of (3, size, size) float32, one entry per view.

    Args:
        image: (3, height, width) uint8.
        settings: of all views.
        seed: of the run.
        epoch: of the run.
        index: position in the dataset, which keys the randomness.
    """
    height, width, indices = (np.array([value]) for value in (*image.shape[1:], index))
    made = []
    for number, view in enumerate(settings.every):
        parameters = sample_parameters(
            view, height, width, seed=seed, epoch=epoch, indices=indices, view=number
        )
        made.append(make_view(image, parameters, 0, view))
    return made
