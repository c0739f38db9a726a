"""Views of a whole batch of small images at once, on the device of the batch.

Made for images of one size up to about 96 pixels, held in memory as uint8: no sample is processed
by itself, and no decision waits for the device. A sample's view does not depend on its batch.
Values are not rounded between operations, so results differ from torchvision on uint8 by about a
level per operation, and from torchvision on floats by hundredths of a level.

Resizing and blurring one axis of a sample is a product with a small dense matrix, so a batch with
a different crop and blur for every sample takes two batched matrix products. For color operations,
images are *planes*, (3, n, pixels) float32 from 0 to 255, in which a channel of consecutive samples
is contiguous. Functions with a trailing underscore work in place.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from imsvd.views.parameters import (
    CONTRAST,
    HUE,
    SATURATION,
    Flags,
    Integers,
    Reals,
    ViewParameters,
    sample_views,
)
from imsvd.views.settings import ViewSettings, ViewsSettings, blur_kernel_size

_BLOCK_PIXELS = 256 * 32 * 32  # per thread
_CUBIC = -0.5  # as in Pillow and torch's antialiased kernel; plain bicubic has -0.75
_WHITE = 255.0
_LUMA = (0.2989, 0.587, 0.114)
_ALIGNMENT = 16  # bytes, enough for every type of number

Array = npt.NDArray[Any]


def make_views_batched(
    images: Tensor, parameters: ViewParameters, settings: ViewSettings
) -> Tensor:
    """Make one view of every image.

    Args:
        images: (n, 3, height, width) uint8, on any device.
        parameters: of the same n samples.
        settings: of the view.

    Returns:
        (n, 3, size, size) float32, normalized, in channels_last memory format.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images must be uint8 of shape (n, 3, height, width), not {images.dtype} of shape "
            f"{tuple(images.shape)}"
        )
    count, size = len(images), settings.size
    views = torch.empty((count, size, size, 3), dtype=torch.float32, device=images.device)
    step = _block_size(images, size)
    # Half precision is too coarse for 256 levels, so autocast is turned off.
    with torch.autocast(images.device.type, enabled=False):
        for start in range(0, count, step):
            block = slice(start, start + step)
            _make_block(images[block], parameters.select(block), settings, out=views[block])
    return views.permute(0, 3, 1, 2)


def batch_views(
    images: Tensor,
    settings: ViewsSettings,
    *,
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.integer[Any]],
) -> list[Tensor]:
    """Make every view of every image: one (n, 3, size, size) float32 tensor per view.

    Args:
        images: (n, 3, height, width) uint8, on any device.
        settings: of all views.
        seed: of the run.
        epoch: of the run.
        indices: (n,) positions in the dataset, which key the randomness.
    """
    heights = np.full(len(images), images.shape[2])
    widths = np.full(len(images), images.shape[3])
    drawn = sample_views(settings, heights, widths, seed=seed, epoch=epoch, indices=indices)
    pairs = zip(drawn, settings.every, strict=True)
    return [make_views_batched(images, parameters, view) for parameters, view in pairs]


def send(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """Return the arrays as tensors on `device`, moved together without making the host wait.

    On a CPU the tensors share the arrays' memory. Otherwise one pinned buffer holds them all.
    """
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device.type == "cpu":
        return tensors
    starts, size = {}, 0
    for name, tensor in tensors.items():
        starts[name] = size
        size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=device.type != "mps")

    def part(whole: Tensor, name: str) -> Tensor:
        like = tensors[name]
        flat = whole[starts[name] : starts[name] + like.nbytes]
        return flat.view(like.dtype).view(like.shape)

    for name, tensor in tensors.items():
        part(buffer, name).copy_(tensor)
    moved = buffer.to(device, non_blocking=True)
    return {name: part(moved, name) for name in tensors}


def _make_block(
    images: Tensor, parameters: ViewParameters, settings: ViewSettings, out: Tensor
) -> None:
    """Write the views of (n, 3, height, width) images to out, (n, size, size, 3)."""
    size = settings.size
    plan = plan_jitter(parameters)
    arrays = _arrays(parameters.select(plan.permutation), plan, settings, images.shape)
    sent = send(arrays, images.device)
    across, down = (
        resize_matrices(
            Resizing(*(sent[f"{axis}_{name}"] for name in Resizing._fields)), settings.interpolation
        )
        for axis in ("across", "down")
    )
    sorted_images = images.index_select(0, sent["permutation"])
    planes = crop_planes(sorted_images, across, down, settings.interpolation)
    flat = planes.view(3, -1, size * size)
    jitter_(flat, plan, sent["blends"], sent["turns"])
    if "gray" in sent:
        to_gray_(flat, sent["gray"])
    if "blur" in sent:
        blur_(planes, sent["blur"], blur_matrices(sent["blur_kernels"], size))
    if "solarize" in sent:
        solarize_(flat, sent["solarize"])
    flat.mul_(sent["scale"]).sub_(sent["shift"])
    torch.index_select(planes.permute(1, 2, 3, 0).contiguous(), 0, sent["inverse"], out=out)


def _arrays(
    parameters: ViewParameters, plan: "JitterPlan", settings: ViewSettings, shape: torch.Size
) -> dict[str, Array]:
    """Return everything that a block of images of `shape` needs from the host, by name.

    `parameters` are in the order of the plan. Operations that no sample needs are left out.
    """
    size, (height, width) = settings.size, shape[2:]
    across = resizing(parameters.left, parameters.width, width, size, reverse=parameters.flip)
    down = resizing(parameters.top, parameters.height, height, size)
    mean, std = (
        torch.tensor(channels)[:, None, None] for channels in (settings.mean, settings.std)
    )
    arrays = {
        "permutation": plan.permutation,
        "inverse": np.argsort(plan.permutation),
        "blends": plan.blends,
        "turns": plan.turns,
        "scale": (1 / (255.0 * std)).numpy(),
        "shift": (mean / std).numpy(),
        **{f"across_{name}": value for name, value in across._asdict().items()},
        **{f"down_{name}": value for name, value in down._asdict().items()},
    }
    for name in ("gray", "blur", "solarize"):
        rows = np.flatnonzero(getattr(parameters, name))
        if rows.size:
            arrays[name] = rows
    if "blur" in arrays:
        arrays["blur_kernels"] = blur_kernels(parameters.blur_sigma[parameters.blur], size)
    return arrays


def _block_size(images: Tensor, size: int) -> int:
    """Return the number of samples to process at a time.

    On a CPU the temporaries of a block should fit into the cache, yet be large enough to hide the
    overhead of calls. A GPU is fastest with everything at once.
    """
    if images.device.type != "cpu":
        return max(1, len(images))
    pixels = max(size * size, images.shape[2] * images.shape[3])
    return max(1, _BLOCK_PIXELS * torch.get_num_threads() // pixels)


def crop_planes(
    images: Tensor, across: Tensor, down: Tensor, interpolation: Literal["bilinear", "bicubic"]
) -> Tensor:
    """Crop, resize and flip (n, 3, height, width) uint8 images into planes.

    Args:
        images: the images.
        across: (n, size, width), the result of `resize_matrices` for rows.
        down: (n, size, height), the same for columns.
        interpolation: the filter of both.

    Returns:
        (3, n, size, size) float32, 0 to 255.
    """
    count, _, height, width = images.shape
    size = down.shape[1]
    rows = images.to(torch.float32).view(count, 3 * height, width)
    narrowed = torch.bmm(rows, across.transpose(1, 2)).view(count, 3, height, size)
    if interpolation == "bicubic":
        narrowed.clamp_(0.0, 255.0)  # between the two passes, as for uint8
    planes = torch.empty((3, count, size, size), dtype=torch.float32, device=images.device)
    for channel, plane in enumerate(planes):
        torch.bmm(down, narrowed[:, channel], out=plane)
    return planes.clamp_(0.0, 255.0) if interpolation == "bicubic" else planes


def blur_(planes: Tensor, rows: Tensor, matrices: Tensor) -> None:
    """Blur the samples `rows`, (m,) ascending, of (3, n, size, size) with (m, size, size) matrices."""
    everyone = len(rows) == planes.shape[1]
    for plane in planes:
        sharp = plane if everyone else plane.index_select(0, rows)
        blurred = torch.bmm(torch.bmm(matrices, sharp), matrices.transpose(1, 2), out=sharp)
        if not everyone:
            plane.index_copy_(0, rows, blurred)


def _filter(distance: Tensor, interpolation: Literal["bilinear", "bicubic"]) -> Tensor:
    """Return the interpolation weight at each non-negative distance; works in place."""
    if interpolation == "bilinear":
        return distance.neg_().add_(1.0).clamp_min_(0.0)
    near = distance.clamp(max=1.0)
    far = distance.clamp_(1.0, 2.0)
    inner = ((_CUBIC + 2) * near - (_CUBIC + 3)) * near * near + 1
    outer = _CUBIC * (((far - 5) * far + 8) * far - 4)
    return inner + outer  # each piece is zero where the other applies


class Resizing(NamedTuple):
    """How one axis of n samples is cropped, resized and mirrored; arrays, or tensors once sent."""

    narrowing: Any
    """(n,) factor of distances, below 1 where the filter is widened because the axis shrinks."""
    center: Any
    """(n, out_size) position in the image of every pixel of the view."""
    inside: Any
    """(n, in_size) 1 for pixels of the crop; others never contribute."""


def resizing(
    starts: Integers,
    lengths: Integers,
    in_size: int,
    out_size: int,
    reverse: Flags | None = None,
) -> Resizing:
    """Return float32 arrays that describe the resizing of one axis, for `resize_matrices`.

    Args:
        starts: (n,) first pixel of each crop.
        lengths: (n,) pixels in each crop.
        in_size: pixels of the axis before.
        out_size: pixels of the axis after.
        reverse: (n,) whether to mirror the result.
    """
    scale = lengths / out_size
    out = np.broadcast_to(np.arange(out_size), (len(lengths), out_size))
    if reverse is not None:
        out = np.where(reverse[:, None], out[:, ::-1], out)
    centers = starts[:, None] + scale[:, None] * (out + 0.5) - 0.5
    position = np.arange(in_size)
    inside = (position >= starts[:, None]) & (position < (starts + lengths)[:, None])
    narrowing = 1 / np.maximum(scale, 1)
    return Resizing(*(array.astype(np.float32) for array in (narrowing, centers, inside)))


def resize_matrices(plan: Resizing, interpolation: Literal["bilinear", "bicubic"]) -> Tensor:
    """Return matrices that crop, resize and optionally mirror one axis of every sample.

    The weights are those of torchvision's antialiased `resize` (after Pillow).

    Args:
        plan: tensors, on the device of the result.
        interpolation: the filter.

    Returns:
        (n, out_size, in_size) float32, rows summing to one.
    """
    narrowing, center, mask = plan
    pixels = torch.arange(mask.shape[1], dtype=torch.float32, device=mask.device)
    distance = (pixels - center[:, :, None]).abs_().mul_(narrowing[:, None, None])
    weights = _filter(distance, interpolation).mul_(mask[:, None, :])
    return weights.div_(weights.sum(dim=2, keepdim=True))


@lru_cache(maxsize=16)
def _reflections(size: int, kernel_size: int, device: torch.device) -> Tensor:
    """Return (kernel_size, size * size): the pixel that tap k of output pixel i reads, reflected."""
    half = kernel_size // 2
    out = torch.arange(size)
    source = (out + torch.arange(-half, half + 1)[:, None]).abs()
    source = (size - 1) - ((size - 1) - source).abs()
    taps = torch.nn.functional.one_hot(source, size).to(torch.float32)
    return taps.reshape(kernel_size, size * size).to(device)


def blur_kernels(sigmas: Reals, size: int) -> npt.NDArray[np.float32]:
    """Return the kernel of each of the sigmas (n,), in pixels: (n, kernel size), for `blur_matrices`."""
    kernel_size = blur_kernel_size(size)
    offsets = np.arange(kernel_size) - kernel_size // 2
    weights = np.exp(-0.5 * (offsets / sigmas[:, None]) ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)


def blur_matrices(kernels: Tensor, size: int) -> Tensor:
    """Return matrices that blur one axis of `size` pixels with (n, kernel size) kernels.

    The weights are those of torchvision's `gaussian_blur` with reflected edges.

    Returns:
        (n, size, size) float32, rows summing to one.
    """
    taps = _reflections(size, kernels.shape[1], kernels.device)
    return (kernels @ taps).view(-1, size, size)


class JitterPlan(NamedTuple):
    """Samples sorted so that color jitter in random order needs slices instead of gathers.

    Brightness, contrast and saturation all blend an image with a gray one; hue does not. A sample
    whose hue comes k-th has k blends before it and 3 - k after. With samples sorted by descending
    k, blend number j applies before hue to the first `before_hue[j]` samples and after hue to the
    rest of the `jittered` ones. Samples without jitter come last.
    """

    permutation: Integers
    """(n,) sample at each sorted position."""
    before_hue: tuple[int, int, int]
    jittered: int
    blends: npt.NDArray[np.float32]
    """(3 blends, 3, n, 1): weight of the image, of its gray image, of its mean gray."""
    turns: npt.NDArray[np.float32]
    """(n, 1) hue shifts."""


def plan_jitter(parameters: ViewParameters) -> JitterPlan:
    """Sort the samples and tabulate their blends, in NumPy so that no device has to wait."""
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
    """Return the luma of (3, n, pixels) planes: (n, pixels)."""
    red, green, blue = planes.unbind()
    return red.mul(_LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])


def blend_(planes: Tensor, weights: Tensor) -> None:
    """Blend (3, n, pixels) with the weights (3, n, 1) of the image, its gray image, its mean gray."""
    gray = gray_of(planes)
    mean = gray.mean(dim=1, keepdim=True)
    offset = torch.addcmul(mean.mul_(weights[2]), gray, weights[1])
    planes.mul_(weights[0]).add_(offset).clamp_(0.0, _WHITE)


def shift_hue_(planes: Tensor, turns: Tensor) -> None:
    """Rotate the hue by (n, 1) turns on the HSV hexagon, keeping saturation and value.

    With the channels scaled so that the smallest is 0 and the largest 1, hue in sixths of a turn is
    ±(1 + green + blue - red), negative if blue exceeds green, and each channel is a trapezoid
    function of the hue. This equals the usual table of six cases.
    """
    red, green, blue = planes.unbind()
    darkest = torch.amin(planes, dim=0)
    chroma = torch.amax(planes, dim=0).sub_(darkest)
    hue = (green - red).add_(blue).sub_(darkest)
    # Gray pixels have no hue; any finite number will do, as it is multiplied by zero chroma.
    hue.div_(chroma.clamp_min(1e-6)).add_(1.0)
    hue.copysign_(green - blue).add_(turns, alpha=6.0)
    hue.sub_(torch.round(hue * (1 / 6)), alpha=6.0)  # into [-3, 3], red at 0
    strength = torch.abs(hue).neg_().add_(2.0).clamp_(0.0, 1.0)
    torch.addcmul(darkest, chroma, strength, out=red)
    torch.add(hue, 1.0, out=strength).abs_().sub_(1.0).clamp_(0.0, 1.0)
    torch.addcmul(darkest, chroma, strength, out=green)
    hue.sub_(1.0).abs_().sub_(1.0).clamp_(0.0, 1.0)
    torch.addcmul(darkest, chroma, hue, out=blue)


def jitter_(planes: Tensor, plan: JitterPlan, blends: Tensor, turns: Tensor) -> None:
    """Apply color jitter to (3, n, pixels), whose samples are in the order of `plan.permutation`.

    `blends` and `turns` are those of the plan, on the device of the planes.
    """
    if not plan.jittered:
        return
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
    """Remove the color of the samples `rows`, (m,) int64, of (3, n, pixels) planes."""
    gray = gray_of(planes.index_select(1, rows))
    for plane in planes:
        plane.index_copy_(0, rows, gray)


def solarize_(planes: Tensor, rows: Tensor) -> None:
    """Invert the bright half of the samples `rows`, (m,) int64.

    With the threshold in the middle of the scale, this is the smaller of value and inverse.
    """
    chosen = planes.index_select(1, rows)
    planes.index_copy_(1, rows, torch.minimum(chosen, _WHITE - chosen))
