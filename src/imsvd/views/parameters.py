"""Random parameters of views: crop, colors, blur; drawn as torchvision draws them, by key.

All appliers (`single`, `photographs`, `batched`) take these parameters, so they can be compared with
one another and with torchvision for the same draw.

Random numbers are looked up rather than streamed: a draw depends on (seed, epoch, sample index,
view, draw number) alone, so neither batch composition, worker, rank nor resumption changes it. The
generator is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), a
pure function of a 128-bit counter and a 64-bit key:

    key     = seed (64 bits)
    counter = sample index (64 bits), epoch (32 bits), view (16 bits), block of four draws (16 bits)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imsvd.views.settings import ViewSettings, ViewsSettings

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""The operations of color jitter, numbered as in torchvision's `ColorJitter`."""

_CROP_ATTEMPTS = 10
_DRAWS_PER_ATTEMPT = 4
# Draw numbers are part of the key: renumbering them changes all views of all runs. Crop attempts
# after the first come last because they are rarely needed.
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
Words = npt.NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)
_DRAWS_PER_BLOCK = 4


class ViewParameters(NamedTuple):
    """The augmentation of n samples; all arrays are (n,), except `order`, which is (n, 4)."""

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
        """Return the parameters of some samples, in the order given."""
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
    """Try one crop per sample from (n, 4) uniforms, as RandomResizedCrop does."""
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
    """Return the largest central crop of an allowed ratio, used when no attempt fits."""
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
    """Try up to ten crops, then take the central one; only samples that failed draw again."""
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
    """Turn (n, draws) uniforms into parameters, given the crops."""
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
    """Draw the parameters of one view for n samples.

    Args:
        settings: of this view.
        heights: (n,) of the images before cropping.
        widths: (n,) of the images before cropping.
        seed: of the run.
        epoch: of the run.
        indices: (n,) positions in the dataset, which key the randomness.
        view: number of this view among the views of a sample.

    Returns:
        Parameters whose entry i depends on indices[i] and the size of its image alone.
    """
    indices = np.asarray(indices)

    def draw_again(rows: Integers, attempt: int) -> Reals:
        start = _LATER_ATTEMPTS + (attempt - 1) * _DRAWS_PER_ATTEMPT
        return keyed_uniforms(seed, epoch, indices[rows], view, _DRAWS_PER_ATTEMPT, start=start)

    uniforms = keyed_uniforms(seed, epoch, indices, view, _SOLARIZE + 1)
    sizes = np.asarray(heights, dtype=np.int64), np.asarray(widths, dtype=np.int64)
    boxes = _sample_crops(settings, *sizes, uniforms[:, _FIRST_ATTEMPT], draw_again)
    return _decode(settings, boxes, uniforms)


def sample_views(
    views: ViewsSettings,
    heights: npt.NDArray[np.integer[Any]],
    widths: npt.NDArray[np.integer[Any]],
    *,
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.integer[Any]],
) -> list[ViewParameters]:
    """Draw the parameters of every view, local ones included; see `sample_parameters`."""
    key = {"seed": seed, "epoch": epoch}
    return [
        sample_parameters(view, heights, widths, **key, indices=indices, view=number)
        for number, view in enumerate(views.every)
    ]


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> Words:
    """Return Philox-4x32-10 of each counter, (*broadcast shape, 4) words below 2**32.

    Args:
        counter: four broadcastable arrays of words below 2**32, in 64-bit integers.
        key: two words below 2**32.
    """
    first, second, third, fourth = np.broadcast_arrays(*counter)
    for step in range(_ROUNDS):
        low_key, high_key = (
            np.uint64((word + step * increment) & 0xFFFFFFFF)
            for word, increment in zip(key, _KEY_STEPS, strict=True)
        )
        product_0 = first * _MULTIPLIERS[0]
        product_1 = third * _MULTIPLIERS[1]
        first = (product_1 >> _WORD_BITS) ^ second ^ low_key
        third = (product_0 >> _WORD_BITS) ^ fourth ^ high_key
        second = product_1 & _LOW_WORD
        fourth = product_0 & _LOW_WORD
    return np.stack((first, second, third, fourth), axis=-1)


def _check_key(seed: int, epoch: int, indices: npt.NDArray[np.integer[Any]], view: int) -> None:
    for name, value, bits in (("seed", seed, 64), ("epoch", epoch, 32), ("view", view, 16)):
        if not 0 <= value < 2**bits:
            raise ValueError(f"{name} {value} is outside 0 to 2**{bits} - 1")
    if indices.ndim != 1 or (indices.size and indices.min() < 0):
        raise ValueError("sample indices must be a 1-D array of non-negative integers")


def keyed_uniforms(
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.integer[Any]],
    view: int,
    draws: int,
    *,
    start: int = 0,
) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1), multiples of 2**-32, for each sample: (samples, draws).

    Args:
        seed: of the run, 0 to 2**64 - 1.
        epoch: 0 to 2**32 - 1.
        indices: (samples,) non-negative positions in the dataset.
        view: 0 to 2**16 - 1.
        draws: count of numbers per sample.
        start: number of the first draw; draw d does not depend on the range requested.
    """
    indices = np.asarray(indices)
    last_draw = start + draws - 1
    _check_key(seed, epoch, indices, view)
    if start < 0 or draws < 0 or last_draw >= _DRAWS_PER_BLOCK * 2**16:
        raise ValueError(f"draws {start} to {last_draw} are outside 0 to 2**18 - 1")
    first, last = start // _DRAWS_PER_BLOCK, last_draw // _DRAWS_PER_BLOCK
    block = np.arange(first, last + 1, dtype=np.uint64) | np.uint64(view << 16)
    sample = indices.astype(np.uint64)[:, None]
    epochs = np.full(1, epoch, dtype=np.uint64)
    counter = (sample & _LOW_WORD, sample >> _WORD_BITS, epochs, block)
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(len(indices), 4 * len(block))
    skipped = start % _DRAWS_PER_BLOCK
    return words[:, skipped : skipped + draws].astype(np.float64) * 2.0**-32


def keyed_order(
    seed: int, epoch: int, indices: npt.NDArray[np.integer[Any]], stream: int
) -> npt.NDArray[np.int64]:
    """Return a random order of the samples, as positions in `indices`: (samples,).

    `stream` takes the place of the view. A sample comes before another one whichever others there are.
    """
    keys = keyed_uniforms(seed, epoch, indices, view=stream, draws=1)[:, 0]
    return np.argsort(keys, kind="stable")
