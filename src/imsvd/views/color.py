"""Color operations on a batch in which every sample has its own factors.

Images are held as *planes*: (3, n, pixels) float32, 0 to 255, so that a channel of any run of
neighboring samples is one contiguous block. Every function with a trailing underscore works in
place. The formulas are torchvision's; none rounds to whole levels between operations.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from imsvd.views.parameters import CONTRAST, HUE, SATURATION, Integers, ViewParameters

_WHITE = 255.0
_LUMA = (0.2989, 0.587, 0.114)


class JitterPlan(NamedTuple):
    """Samples sorted so that color jitter in random order needs slices, never gathers.

    Brightness, contrast and saturation all blend an image with a gray one; hue does not. A sample
    whose hue comes k-th has k blends before it and 3 - k after, so with the samples sorted by
    falling k, blend number j runs before hue on the leading `before_hue[j]` samples and after hue
    on the rest of the `jittered` ones. Samples without jitter come last.
    """

    permutation: Integers
    """(n,) the sample at each sorted position."""
    before_hue: tuple[int, int, int]
    jittered: int
    blends: npt.NDArray[np.float32]
    """(3 blends, 3, n, 1): weight of the image, of its gray image, of its mean gray."""
    turns: npt.NDArray[np.float32]
    """(n, 1) hue shifts."""


def plan_jitter(parameters: ViewParameters) -> JitterPlan:
    """Sort the samples and tabulate their blends; numpy only, so no device waits for it."""
    hue_position = np.where(parameters.jitter, np.argmax(parameters.order == HUE, axis=1), -1)
    permutation = np.argsort(-hue_position, kind="stable")
    order = parameters.order[permutation]
    operations = order[order != HUE].reshape(-1, 3)
    columns = np.stack((parameters.brightness, parameters.contrast, parameters.saturation), axis=1)
    factors = np.take_along_axis(columns[permutation], operations, axis=1)
    rest = 1.0 - factors
    weights = np.stack(
        (factors, rest * (operations == SATURATION), rest * (operations == CONTRAST))
    )
    before = [int((hue_position > blend).sum()) for blend in range(3)]
    return JitterPlan(
        permutation=permutation,
        before_hue=(before[0], before[1], before[2]),
        jittered=int((hue_position >= 0).sum()),
        blends=weights.transpose(2, 0, 1)[..., None].astype(np.float32),
        turns=parameters.hue[permutation, None].astype(np.float32),
    )


def gray_of(planes: Tensor) -> Tensor:
    """Luma of (3, n, pixels) planes: (n, pixels)."""
    red, green, blue = planes.unbind()
    return red.mul(_LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])


def blend_(planes: Tensor, weights: Tensor) -> None:
    """Brightness, contrast or saturation, whichever the weights say.

    Args:
        planes: (3, n, pixels).
        weights: (3, n, 1) of the image, of its gray image, of its mean gray.
    """
    gray = gray_of(planes)
    mean = gray.mean(dim=1, keepdim=True)
    offset = torch.addcmul(mean.mul_(weights[2]), gray, weights[1])
    planes.mul_(weights[0]).add_(offset).clamp_(0.0, _WHITE)


def shift_hue_(planes: Tensor, turns: Tensor) -> None:
    """Rotate the hue on the HSV hexagon, keeping saturation and value.

    With the channels scaled so that the smallest is 0 and the largest 1, hue in sixths of a turn is
    ±(1 + green + blue - red), negative when blue exceeds green; each channel is then a trapezoid of
    the hue. This is the usual sextant table without its six cases.

    Args:
        planes: (3, n, pixels).
        turns: (n, 1) in [-0.5, 0.5].
    """
    red, green, blue = planes.unbind()
    darkest = torch.amin(planes, dim=0)
    chroma = torch.amax(planes, dim=0).sub_(darkest)
    hue = (green - red).add_(blue).sub_(darkest)
    # Gray pixels have no hue; any finite number will do, as their chroma multiplies it away.
    hue.div_(chroma.clamp_min(1e-6)).add_(1.0)
    hue.copysign_(green - blue).add_(turns, alpha=6.0)
    hue.sub_(torch.round(hue * (1 / 6)), alpha=6.0)  # into [-3, 3], red at 0
    strength = torch.abs(hue).neg_().add_(2.0).clamp_(0.0, 1.0)
    torch.addcmul(darkest, chroma, strength, out=red)
    torch.add(hue, 1.0, out=strength).abs_().sub_(1.0).clamp_(0.0, 1.0)
    torch.addcmul(darkest, chroma, strength, out=green)
    hue.sub_(1.0).abs_().sub_(1.0).clamp_(0.0, 1.0)
    torch.addcmul(darkest, chroma, hue, out=blue)


def jitter_(planes: Tensor, plan: JitterPlan) -> None:
    """All four operations of color jitter, each sample in its own order.

    Args:
        planes: (3, n, pixels), the samples in the order of `plan.permutation`.
        plan: of the same samples.
    """
    if not plan.jittered:
        return
    blends = torch.from_numpy(plan.blends).to(planes.device)
    turns = torch.from_numpy(plan.turns).to(planes.device)
    for weights, count in zip(blends, plan.before_hue, strict=True):
        if count:
            blend_(planes[:, :count], weights[:, :count])
    if plan.turns[: plan.jittered].any():
        shift_hue_(planes[:, : plan.jittered], turns[: plan.jittered])
    for weights, count in zip(blends, plan.before_hue, strict=True):
        if count < plan.jittered:
            rows = slice(count, plan.jittered)
            blend_(planes[:, rows], weights[:, rows])


def to_gray_(planes: Tensor, rows: Tensor) -> None:
    """Remove the color of some samples of (3, n, pixels) planes; rows is (m,) int64."""
    gray = gray_of(planes.index_select(1, rows))
    for plane in planes:
        plane.index_copy_(0, rows, gray)


def solarize_(planes: Tensor, rows: Tensor) -> None:
    """Invert the bright half of some samples; rows is (m,) int64.

    With the threshold in the middle of the scale, inverting what lies above it is the smaller of
    the value and its inverse.
    """
    chosen = planes.index_select(1, rows)
    planes.index_copy_(1, rows, torch.minimum(chosen, _WHITE - chosen))
