"""Views of one photograph made with OpenCV, several times as fast as torchvision's functionals.

Brightness, contrast and saturation blend a pixel with its gray value or a constant. With a factor of
at most 1 the result stays within the scale, so such a blend needs no clipping and is merged with the
next one. Hue and blur are computed in float32. Each operation is within a level of torchvision's on
uint8.

Importing this module requires OpenCV, which the extra `fast` installs.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from imsvd.views.parameters import CONTRAST, HUE, SATURATION, ViewParameters
from imsvd.views.settings import ViewSettings, blur_kernel_size

# Images are processed in parallel by processes; and OpenCV's threads do not survive a fork.
cv2.setNumThreads(0)

Pixels = npt.NDArray[np.uint8]
Levels = npt.NDArray[Any]
"""uint8 or float32, 0 to 255."""

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114
_DEGREES = 360.0
# torchvision truncates fractions of a level, OpenCV rounds them.
_DROPPED = 0.5
# Neighbors with less weight than this do not change a level.
_LEAST_WEIGHT = 1 / 1024


def crop_view(
    image: Pixels, box: tuple[int, int, int, int], settings: ViewSettings, reduction: int = 1
) -> Pixels:
    """Crop and resize an image to (size, size, 3), antialiased.

    The image is (height, width, 3), decoded at 1 / `reduction` of the size that `box` (top, left,
    height, width) refers to.
    """
    top, left, height, width = box
    size = settings.size
    if reduction > 1:
        return _crop_between_pixels(image, box, settings, reduction)
    crop = image[top : top + height, left : left + width]
    if settings.interpolation == "bilinear" and max(height, width) <= size:
        # Nothing shrinks, so antialiasing has no effect.
        return cv2.resize(crop, (size, size))  # type: ignore[return-value]
    # PyTorch is slow on planes and transposed images, and rejects mirrored ones.
    if crop.strides[1:] != (3, 1) or crop.strides[0] < 0:
        crop = np.ascontiguousarray(crop)
    # The batch axis is added before the channels are moved: otherwise PyTorch uses its slow kernel
    # and returns planes.
    resized = torch.from_numpy(crop)[None].permute(0, 3, 1, 2)
    shapes = [(size, size)]
    # PyTorch starts along the rows, the slower half; if their number shrinks, do that first.
    # Bicubic overshoots and is clipped in between, so its order must stay.
    if settings.interpolation == "bilinear" and height > size:
        shapes.insert(0, (size, width))
    for shape in shapes:
        resized = torch.nn.functional.interpolate(
            resized, shape, mode=settings.interpolation, antialias=True
        )
    return resized.permute(0, 2, 3, 1)[0].numpy()


def _crop_between_pixels(
    image: Pixels, box: tuple[int, int, int, int], settings: ViewSettings, reduction: int
) -> Pixels:
    """Crop from a reduced image, where the box is fractional, which only Pillow supports."""
    top, left, height, width = (side / reduction for side in box)
    # Pillow copies its input, so it gets only what the crop touches.
    first_row, first_column = int(top), int(left)
    touched = image[first_row : math.ceil(top + height), first_column : math.ceil(left + width)]
    filters = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
    resample = filters[settings.interpolation == "bicubic"]
    top, left = top - first_row, left - first_column
    # The last fractional row or column may be missing at the edge of the image.
    within = (left, top, min(left + width, touched.shape[1]), min(top + height, touched.shape[0]))
    region = Image.fromarray(np.ascontiguousarray(touched))
    return np.array(region.resize((settings.size, settings.size), resample, within))


class Blend(NamedTuple):
    """x -> image * x + gray * luma(x) + offset, for every channel x of a pixel."""

    image: float = 1.0
    gray: float = 0.0
    offset: float = 0.0

    def then(self, following: "Blend") -> "Blend":
        """Combine both, provided that nothing is clipped in between."""
        return Blend(
            following.image * self.image,
            following.image * self.gray + following.gray * (self.image + self.gray),
            (following.image + following.gray) * self.offset + following.offset,
        )

    def apply(self, view: Pixels) -> Pixels:
        """Blend a (size, size, 3) view, clipping to the scale."""
        red, green, blue = self.gray * _RED, self.gray * _GREEN, self.gray * _BLUE
        image, offset = self.image, self.offset
        matrix = (
            (red + image, green, blue, offset),
            (red, green + image, blue, offset),
            (red, green, blue + image, offset),
        )
        return cv2.transform(view, np.array(matrix))  # type: ignore[return-value]


def shift_hue(view: Pixels, turns: float) -> Pixels:
    """Rotate the hue of a (size, size, 3) view, keeping saturation and value."""
    hsv: Levels = cv2.cvtColor(view.astype(np.float32), cv2.COLOR_RGB2HSV)
    rows = hsv.reshape(len(hsv), -1)
    # OpenCV accepts hues of more than a full turn but no negative ones.
    rows += _hue_row(view.shape[1]) * np.float32(_DEGREES * (turns % 1.0))
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB, dst=hsv).astype(np.uint8)


@lru_cache(maxsize=16)
def _hue_row(width: int) -> npt.NDArray[np.float32]:
    """Return 1 for the first channel of every pixel of a row, otherwise 0."""
    return np.tile(np.array([1.0, 0.0, 0.0], dtype=np.float32), width)


def jitter(view: Pixels, parameters: ViewParameters, i: int) -> Pixels:
    """Apply color jitter in the order of sample i to a (size, size, 3) view."""
    columns = (parameters.brightness, parameters.contrast, parameters.saturation, parameters.hue)
    pending: Blend | None = None
    for operation in parameters.order[i].tolist():
        factor = float(columns[operation][i])
        if operation == HUE:
            if factor:
                view = shift_hue(pending.apply(view) if pending else view, factor)
                pending = None
            continue
        if factor == 1.0:
            continue
        blend = _blend(operation, factor, view, pending)
        pending = pending.then(blend) if pending else blend
        if factor > 1.0:
            view, pending = pending.apply(view), None
    return pending.apply(view) if pending else view


def _blend(operation: int, factor: float, view: Pixels, pending: Blend | None) -> Blend:
    """Return the blend of an operation that follows the pending ones."""
    rest = 1.0 - factor
    if operation == SATURATION:
        return Blend(factor, rest, -_DROPPED)
    if operation == CONTRAST:
        red, green, blue, _ = cv2.mean(view)
        mean = _RED * red + _GREEN * green + _BLUE * blue
        if pending:
            mean = (pending.image + pending.gray) * mean + pending.offset
        return Blend(factor, 0.0, rest * mean - _DROPPED)
    return Blend(factor, 0.0, -_DROPPED)


def blur_view(view: Pixels, sigma: float) -> Pixels:
    """Blur a (size, size) or (size, size, 3) view, with reflected edges."""
    if math.exp(-0.5 / sigma**2) < _LEAST_WEIGHT:
        return view
    radius = min(blur_kernel_size(len(view)) // 2, math.ceil(3 * sigma))
    kernel = cv2.getGaussianKernel(2 * radius + 1, sigma)
    return cv2.sepFilter2D(view, cv2.CV_8U, kernel, kernel)  # type: ignore[return-value]


def solarize(view: Pixels) -> Pixels:
    """Invert the bright half of the scale."""
    inverse: Pixels = 255 - view
    return np.minimum(view, inverse, out=inverse)


def make_photograph_view(
    image: Pixels, parameters: ViewParameters, i: int, settings: ViewSettings, reduction: int = 1
) -> Pixels:
    """Make the view (size, size, 3) of sample i, within a few levels of `make_levels`.

    The image is (height, width, 3), decoded at 1 / `reduction` of the size for which the
    parameters were drawn.
    """
    top, left, height, width = (int(side[i]) for side in parameters[:4])
    view = crop_view(image, (top, left, height, width), settings, reduction)
    if parameters.flip[i]:
        view = cv2.flip(view, 1)  # type: ignore[assignment]
    if parameters.jitter[i]:
        view = jitter(view, parameters, i)
    if parameters.gray[i]:
        view = cv2.cvtColor(view, cv2.COLOR_RGB2GRAY)  # type: ignore[assignment]
    if parameters.blur[i]:
        view = blur_view(view, float(parameters.blur_sigma[i]))
    if parameters.solarize[i]:
        view = solarize(view)
    if view.ndim == 2:
        view = cv2.cvtColor(view, cv2.COLOR_GRAY2RGB)  # type: ignore[assignment]
    return view
