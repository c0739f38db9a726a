"""Which crop, which colors: the parameters of a view, drawn as torchvision draws them.

Both appliers, one image at a time (`single`) and a whole batch (`batched`), take these parameters,
so they can be compared with each other and with torchvision for the same draw.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imsvd.views.keyed import keyed_uniforms
from imsvd.views.settings import ViewSettings

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""The operations of color jitter, numbered as in torchvision's `ColorJitter`."""

_CROP_ATTEMPTS = 10
_DRAWS_PER_ATTEMPT = 4
# Draw numbers are part of the key: renumbering them changes every view of every run. Attempts
# after the first come last because they are seldom needed.
_FIRST_ATTEMPT = slice(0, _DRAWS_PER_ATTEMPT)
_FLIP = 4
_JITTER = 5
_ORDER = slice(6, 10)
_FACTORS = slice(10, 14)
_GRAY = 14
_BLUR = 15
_BLUR_SIGMA = 16
_SOLARIZE = 17
_LATER_ATTEMPTS = 20

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class ViewParameters(NamedTuple):
    """What happens to each of n samples; every array is (n,) but `order`, which is (n, 4)."""

    top: Integers
    left: Integers
    height: Integers
    width: Integers
    flip: Flags
    jitter: Flags
    order: Integers
    """Permutation of BRIGHTNESS, CONTRAST, SATURATION, HUE in order of application."""
    brightness: Reals
    contrast: Reals
    saturation: Reals
    hue: Reals
    """In turns, -0.5 to 0.5."""
    gray: Flags
    blur: Flags
    blur_sigma: Reals
    solarize: Flags

    def select(self, rows: slice | Integers) -> "ViewParameters":
        """The parameters of some of the samples, in the order asked for."""
        return ViewParameters(**{name: column[rows] for name, column in self._asdict().items()})


class _Boxes(NamedTuple):
    top: Integers
    left: Integers
    height: Integers
    width: Integers
    fits: Flags


def _attempt_crop(
    settings: ViewSettings, heights: Integers, widths: Integers, uniforms: Reals
) -> _Boxes:
    """One attempt at a crop per sample from (n, 4) uniforms, as in RandomResizedCrop."""
    area = heights * widths * _between(settings.crop_scale, uniforms[:, 0])
    low, high = (math.log(ratio) for ratio in settings.crop_ratio)
    ratio = np.exp(_between((low, high), uniforms[:, 1]))
    width = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    height = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (width > 0) & (width <= widths) & (height > 0) & (height <= heights)
    top = np.floor(uniforms[:, 2] * (heights - height + 1)).astype(np.int64)
    left = np.floor(uniforms[:, 3] * (widths - width + 1)).astype(np.int64)
    return _Boxes(top, left, height, width, fits)


def _central_crop(settings: ViewSettings, heights: Integers, widths: Integers) -> _Boxes:
    """The largest central crop of an allowed ratio, for images no attempt has fitted into."""
    low, high = settings.crop_ratio
    ratio = widths / heights
    height = np.where(ratio < low, np.rint(widths / low).astype(np.int64), heights)
    width = np.where(ratio > high, np.rint(heights * high).astype(np.int64), widths)
    top, left = (heights - height) // 2, (widths - width) // 2
    return _Boxes(top, left, height, width, np.ones(len(heights), dtype=bool))


def _between(bounds: tuple[float, float], uniforms: Reals) -> Reals:
    low, high = bounds
    return low + (high - low) * uniforms


def _factor(strength: float, uniforms: Reals) -> Reals:
    return _between((max(0.0, 1.0 - strength), 1.0 + strength), uniforms)


def _sample_crops(
    settings: ViewSettings,
    heights: Integers,
    widths: Integers,
    first: Reals,
    draw_again: Callable[[Integers, int], Reals],
) -> _Boxes:
    """Up to ten attempts, then the central crop; only samples that failed draw again."""
    boxes = _attempt_crop(settings, heights, widths, first)
    pending = np.flatnonzero(~boxes.fits)
    for attempt in range(1, _CROP_ATTEMPTS):
        if not pending.size:
            return boxes
        uniforms = draw_again(pending, attempt)
        retried = _attempt_crop(settings, heights[pending], widths[pending], uniforms)
        _replace(boxes, pending, retried)
        pending = pending[~retried.fits]
    _replace(boxes, pending, _central_crop(settings, heights[pending], widths[pending]))
    return boxes


def _replace(boxes: _Boxes, rows: Integers, values: _Boxes) -> None:
    for column, new in zip(boxes, values, strict=True):
        column[rows] = new


def _decode(settings: ViewSettings, boxes: _Boxes, uniforms: Reals) -> ViewParameters:
    """Turn (n, draws) uniforms into everything but the crop, and put the two together."""
    factors = uniforms[:, _FACTORS]
    return ViewParameters(
        top=boxes.top,
        left=boxes.left,
        height=boxes.height,
        width=boxes.width,
        flip=uniforms[:, _FLIP] < settings.flip_probability,
        jitter=uniforms[:, _JITTER] < settings.jitter_probability,
        order=np.argsort(uniforms[:, _ORDER], axis=1, kind="stable"),
        brightness=_factor(settings.brightness, factors[:, BRIGHTNESS]),
        contrast=_factor(settings.contrast, factors[:, CONTRAST]),
        saturation=_factor(settings.saturation, factors[:, SATURATION]),
        hue=_between((-settings.hue, settings.hue), factors[:, HUE]),
        gray=uniforms[:, _GRAY] < settings.gray_probability,
        blur=uniforms[:, _BLUR] < settings.blur_probability,
        blur_sigma=_between(settings.blur_sigma, uniforms[:, _BLUR_SIGMA]),
        solarize=uniforms[:, _SOLARIZE] < settings.solarize_probability,
    )


def sample_parameters(
    settings: ViewSettings,
    heights: npt.NDArray[np.integer[Any]],
    widths: npt.NDArray[np.integer[Any]],
    *,
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.integer[Any]],
    view: int,
) -> ViewParameters:
    """Draw one view's parameters for every sample.

    Args:
        settings: of this view.
        heights: (n,) of the images before cropping.
        widths: (n,) likewise.
        seed: of the run.
        epoch: of the run.
        indices: (n,) positions in the dataset, which key the draw.
        view: position of this view among the views of a sample.

    Returns:
        Arrays of n entries; entry i depends on indices[i] and its image's size alone.
    """
    indices = np.asarray(indices)

    def draw_again(rows: Integers, attempt: int) -> Reals:
        start = _LATER_ATTEMPTS + (attempt - 1) * _DRAWS_PER_ATTEMPT
        return keyed_uniforms(seed, epoch, indices[rows], view, _DRAWS_PER_ATTEMPT, start=start)

    uniforms = keyed_uniforms(seed, epoch, indices, view, _SOLARIZE + 1)
    sizes = np.asarray(heights, dtype=np.int64), np.asarray(widths, dtype=np.int64)
    boxes = _sample_crops(settings, *sizes, uniforms[:, _FIRST_ATTEMPT], draw_again)
    return _decode(settings, boxes, uniforms)
